import { expect, test } from "vitest";

import {
  Feed,
  FIRST_PAUSE_MS,
  type FeedState,
  isAfter,
  LONGEST_PAUSE_MS,
  type Source,
} from "./feed";

class FakeSource implements Source {
  onopen: (() => void) | null = null;
  onmessage: ((message: { data: string; lastEventId: string }) => void) | null = null;
  onerror: (() => void) | null = null;
  isClosed = false;
  private listeners = new Map<string, (message: { data: string }) => void>();
  constructor(readonly after: string) {}
  addEventListener(type: "end" | "refused", listener: (message: { data: string }) => void) {
    this.listeners.set(type, listener);
  }
  close() {
    this.isClosed = true;
  }
  say(revision: number) {
    this.onmessage?.({ data: `event ${revision}`, lastEventId: String(revision) });
  }
  finish() {
    this.listeners.get("end")?.({ data: "{}" });
  }
  refuse(data: string) {
    this.listeners.get("refused")?.({ data });
    // So ends the connection of every stream that the service closes.
    this.onerror?.();
  }
}

// A feed in the hands of a test: its connections, its clock, and what it said.
function make(after = "0") {
  const sources: FakeSource[] = [];
  const events: string[] = [];
  const states: FeedState[] = [];
  const timers: { run: () => void; ms: number }[] = [];
  const feed = new Feed({
    after,
    open: (from) => {
      sources.push(new FakeSource(from));
      return sources.at(-1)!;
    },
    onEvent: (data) => events.push(data),
    onState: (state) => states.push(state),
    setTimer: (run, ms) => timers.push({ run, ms }),
    clearTimer: (timer) => timers.splice((timer as number) - 1, 1, { run: () => undefined, ms: 0 }),
  });
  return { feed, sources, events, states, timers, last: () => sources.at(-1)! };
}

test("goes on after the last revision it saw", () => {
  const t = make("3");
  expect(t.last().after).toBe("3");
  t.last().onopen!();
  t.last().say(4);
  t.last().say(9);
  t.last().onerror!();
  expect(t.states.at(-1)).toEqual({ kind: "lost", retryInMs: FIRST_PAUSE_MS });
  expect(t.sources[0]!.isClosed).toBe(true);
  t.timers.at(-1)!.run();
  expect(t.last().after).toBe("9");
  expect(t.events).toEqual(["event 4", "event 9"]);
});

test("tells nothing twice", () => {
  const t = make("5");
  t.last().say(5);
  t.last().say(6);
  t.last().say(6);
  t.last().say(4);
  expect(t.events).toEqual(["event 6"]);
});

test("pauses grow, and begin anew once it was live", () => {
  const t = make();
  for (let i = 0; i < 8; i++) {
    t.last().onerror!();
    t.timers.at(-1)!.run();
  }
  expect(t.timers.map((timer) => timer.ms)).toEqual([
    500,
    1000,
    2000,
    4000,
    LONGEST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    LONGEST_PAUSE_MS,
  ]);
  t.last().onopen!();
  t.last().onerror!();
  expect(t.timers.at(-1)!.ms).toBe(FIRST_PAUSE_MS);
});

test("what a connection that was given up says is not heard", () => {
  const t = make();
  t.last().say(1);
  const old = t.last();
  t.feed.pause();
  old.say(2);
  old.onerror!();
  expect(t.events).toEqual(["event 1"]);
  expect(t.states.at(-1)).toEqual({ kind: "paused" });
  t.feed.resume();
  expect(t.last().after).toBe("1");
  t.last().say(2);
  expect(t.events).toEqual(["event 1", "event 2"]);
});

test("resume takes the place of a retry that waits", () => {
  const t = make();
  t.last().onerror!();
  t.feed.resume();
  expect(t.sources).toHaveLength(2);
  t.timers[0]!.run();
  expect(t.sources).toHaveLength(2);
});

test("after the end nothing is opened again", () => {
  const t = make();
  t.last().finish();
  expect(t.states.at(-1)).toEqual({ kind: "ended" });
  t.feed.resume();
  t.feed.pause();
  expect(t.sources).toHaveLength(1);
  expect(t.states.at(-1)).toEqual({ kind: "ended" });
});

test("a feed that is refused says why, and does not ask by itself again", () => {
  const t = make("3");
  t.last().onopen!();
  t.last().say(4);
  t.last().refuse('{"error": {"code": "UNAUTHENTICATED", "message": "the token was revoked"}}');
  expect(t.states.at(-1)).toEqual({ kind: "refused", why: "the token was revoked" });
  expect(t.sources[0]!.isClosed).toBe(true);
  expect(t.timers).toHaveLength(0);
  // With a new token, after a click.
  t.feed.resume();
  expect(t.last().after).toBe("4");
  t.last().refuse("out of order");
  expect(t.states.at(-1)).toEqual({ kind: "refused", why: "out of order" });
});

test("revisions are compared as the 64-bit integers they are", () => {
  expect(isAfter("10", "9")).toBe(true);
  expect(isAfter("9007199254740993", "9007199254740992")).toBe(true);
  expect(isAfter("9", "9")).toBe(false);
  expect(isAfter("", "0")).toBe(false);
});
