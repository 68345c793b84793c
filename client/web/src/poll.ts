// Asking again and again while the page is looked at.
import { useEffect, useState } from "preact/hooks";

import { ApiError } from "./api/client";

export interface Polled<T> {
  value: T | null;
  error: ApiError | null;
  // Of the last answer, in milliseconds; 0: none came yet.
  at: number;
}

// Calls `ask` at once, and `everyMs` after each answer. A failed call keeps the last value. Starts
// anew when `key` changes. Stops while the page is hidden.
export function usePoll<T>(
  key: string,
  everyMs: number,
  ask: (signal: AbortSignal) => Promise<T>,
): Polled<T> {
  const [polled, set] = useState<Polled<T>>({ value: null, error: null, at: 0 });
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let isAsking = false;
    const turn = async () => {
      clearTimeout(timer);
      if (document.hidden || isAsking) return;
      isAsking = true;
      try {
        const value = await ask(stop.signal);
        if (!stop.signal.aborted) set({ value, error: null, at: Date.now() });
      } catch (cause) {
        if (stop.signal.aborted) return;
        const error = cause instanceof ApiError ? cause : new ApiError(String(cause), 500);
        set((before) => ({ ...before, error }));
      }
      isAsking = false;
      if (!stop.signal.aborted) timer = window.setTimeout(turn, everyMs);
    };
    const onVisible = () => {
      if (!document.hidden) void turn();
    };
    document.addEventListener("visibilitychange", onVisible);
    void turn();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [key, everyMs]);
  return polled;
}

// The time now, in milliseconds, every second.
export function useNow(): number {
  const [now, set] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
