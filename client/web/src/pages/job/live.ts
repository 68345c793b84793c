// A job and its history, kept up to date by its events.
import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError, eventsPath, fetchHistory, fetchJob } from "../../api/client";
import { Feed, type FeedState, type Source } from "../../api/feed";
import type { JobEvent } from "../../api/types";
import { JobView } from "../../data/job";

const POINTS = 800;
// So many events since the history was asked for, and it is asked for again, thinned anew.
const MAX_LIVE_EVENTS = 3000;
// Events come in bursts; the page is drawn at most this often.
const DRAW_EVERY_MS = 150;
const ASK_AGAIN_MS = 3000;

export interface Live {
  view: JobView | null;
  feed: FeedState;
  error: ApiError | null;
  // How much of a long history has been read.
  readUpTo: number | null;
  // Counts up when the view has changed.
  version: number;
  retry: () => void;
}

export function useLiveJob(id: string, rank: number): Live {
  const [state, set] = useState<Omit<Live, "retry">>({
    view: null,
    feed: { kind: "connecting" },
    error: null,
    readUpTo: null,
    version: 0,
  });
  const [turn, setTurn] = useState(0);
  const feed = useRef<Feed | null>(null);

  useEffect(() => {
    const stop = new AbortController();
    const timers = new Set<number>();
    let drawing = 0;
    const later = (run: () => void, ms: number) => {
      const timer = window.setTimeout(() => {
        timers.delete(timer);
        run();
      }, ms);
      timers.add(timer);
      return timer;
    };
    const load = async () => {
      try {
        const history = await fetchHistory(id, { points: POINTS, rank }, stop.signal, (part) =>
          set((before) => ({ ...before, readUpTo: part.steps?.lastStep?.at(-1) ?? 0 })),
        );
        // The job after its history: what it has that the history has not, events bring once more.
        const job = await fetchJob(id, stop.signal);
        if (!stop.signal.aborted) follow(new JobView(job, history, rank), history.revision ?? "0");
      } catch (cause) {
        if (stop.signal.aborted) return;
        const error = cause instanceof ApiError ? cause : new ApiError(String(cause), 500);
        set((before) => ({ ...before, error }));
        // A job that is not there will not come.
        if (error.status !== 404) later(load, ASK_AGAIN_MS);
      }
    };
    const follow = (view: JobView, after: string) => {
      set((before) => ({
        ...before,
        view,
        error: null,
        readUpTo: null,
        version: before.version + 1,
      }));
      feed.current?.close();
      const mine = new Feed({
        after,
        open: (from) => new EventSource(eventsPath(id, from)) as unknown as Source,
        onEvent: (data) => {
          const event = JSON.parse(data) as JobEvent;
          view.apply(event);
          if (event.state !== undefined) void refresh(view);
          if (view.numLive === MAX_LIVE_EVENTS) void load();
          if (drawing === 0) {
            drawing = later(() => {
              drawing = 0;
              set((before) => ({ ...before, version: before.version + 1 }));
            }, DRAW_EVERY_MS);
          }
        },
        onState: (now) => set((before) => ({ ...before, feed: now })),
      });
      feed.current = mine;
      if (document.hidden) mine.pause();
    };
    // Events of state do not say where its ranks are.
    const refresh = async (view: JobView) => {
      try {
        view.job = await fetchJob(id, stop.signal);
        set((before) => ({ ...before, version: before.version + 1 }));
      } catch {
        // The feed says what is wrong, if it is more than this one answer.
      }
    };
    const onVisibility = () => (document.hidden ? feed.current?.pause() : feed.current?.resume());
    document.addEventListener("visibilitychange", onVisibility);
    void load();
    return () => {
      stop.abort();
      timers.forEach((timer) => clearTimeout(timer));
      document.removeEventListener("visibilitychange", onVisibility);
      feed.current?.close();
      feed.current = null;
    };
  }, [id, rank, turn]);

  const retry = () => (feed.current ? feed.current.resume() : setTurn((before) => before + 1));
  return { ...state, retry };
}
