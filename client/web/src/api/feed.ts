// A job's events as they come. When the connection goes, it is made again after a pause that grows,
// and goes on after the last revision that was seen, so nothing is missed and nothing comes twice.

export type FeedState =
  | { kind: "connecting" }
  | { kind: "live" }
  // Not looked at: the page is hidden.
  | { kind: "paused" }
  | { kind: "lost"; retryInMs: number }
  // The job has ended, and all of it was told.
  | { kind: "ended" }
  // The token that it came with holds no more. One sentence, as the service gave it.
  | { kind: "refused"; why: string };

// What the feed needs of an EventSource.
export interface Source {
  onopen: (() => void) | null;
  onmessage: ((message: { data: string; lastEventId: string }) => void) | null;
  onerror: (() => void) | null;
  addEventListener(type: "end" | "refused", listener: (message: { data: string }) => void): void;
  close(): void;
}

export interface FeedOptions {
  // The first revision wanted is the one after this.
  after: string;
  open: (after: string) => Source;
  onEvent: (data: string) => void;
  onState: (state: FeedState) => void;
  setTimer?: (run: () => void, ms: number) => unknown;
  clearTimer?: (timer: unknown) => void;
}

export const FIRST_PAUSE_MS = 500;
export const LONGEST_PAUSE_MS = 8000;

export class Feed {
  private source: Source | null = null;
  private timer: unknown = null;
  private pauseMs = FIRST_PAUSE_MS;
  private after: string;
  private over = false;

  constructor(private readonly options: FeedOptions) {
    this.after = options.after;
    this.connect();
  }

  // The last revision that was seen.
  get revision(): string {
    return this.after;
  }

  // Lets go of the connection until resume().
  pause(): void {
    if (this.over) return;
    this.drop();
    this.options.onState({ kind: "paused" });
  }

  // Connects now, whatever the pause.
  resume(): void {
    if (this.over) return;
    this.drop();
    this.pauseMs = FIRST_PAUSE_MS;
    this.connect();
  }

  close(): void {
    this.over = true;
    this.drop();
  }

  private drop(): void {
    this.source?.close();
    this.source = null;
    if (this.timer !== null)
      (this.options.clearTimer ?? ((t) => clearTimeout(t as number)))(this.timer);
    this.timer = null;
  }

  private connect(): void {
    this.options.onState({ kind: "connecting" });
    const source = this.options.open(this.after);
    this.source = source;
    // What a source that was dropped still says is nobody's business.
    const current =
      <T extends unknown[]>(act: (...said: T) => void) =>
      (...said: T) => {
        if (this.source === source) act(...said);
      };
    source.onopen = current(() => {
      this.pauseMs = FIRST_PAUSE_MS;
      this.options.onState({ kind: "live" });
    });
    source.onmessage = (message) => {
      if (this.source !== source) return;
      if (!isAfter(message.lastEventId, this.after)) return;
      this.after = message.lastEventId;
      this.options.onEvent(message.data);
    };
    source.onerror = current(() => this.retry());
    source.addEventListener(
      "end",
      current(() => {
        this.close();
        this.options.onState({ kind: "ended" });
      }),
    );
    // Not tried again by itself: the same token would be refused again, every few seconds.
    source.addEventListener(
      "refused",
      current(({ data }: { data: string }) => {
        this.drop();
        this.options.onState({ kind: "refused", why: sentence(data) });
      }),
    );
  }

  private retry(): void {
    this.drop();
    this.options.onState({ kind: "lost", retryInMs: this.pauseMs });
    const run = () => {
      this.timer = null;
      this.connect();
    };
    this.timer = (this.options.setTimer ?? ((f, ms) => setTimeout(f, ms)))(run, this.pauseMs);
    this.pauseMs = Math.min(this.pauseMs * 2, LONGEST_PAUSE_MS);
  }
}

// Of the service's JSON of an error.
function sentence(data: string): string {
  try {
    return (JSON.parse(data) as { error?: { message?: string } }).error?.message ?? data;
  } catch {
    return data;
  }
}

// Revisions are 64-bit integers in decimal.
export function isAfter(revision: string, other: string): boolean {
  if (!/^\d+$/.test(revision)) return false;
  return BigInt(revision) > BigInt(other);
}
