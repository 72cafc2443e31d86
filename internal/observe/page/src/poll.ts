// Asking again and again: not while the page is hidden, and more and more rarely while
// there is no answer.

import { get, Refused } from "./api.ts";

const slowest = 15_000;

export interface Poll {
  /** Asks now; the path may have changed. */
  now(): void;
  stop(): void;
}

export interface Watched<T> {
  path: () => string;
  /** In milliseconds, by the answer that came. */
  every: number | (() => number);
  got: (answer: T) => void;
  /** There was no answer, or none of use; the next try is in so many milliseconds. */
  failed?: (error: Error, next: number) => void;
}

export function poll<T>(w: Watched<T>): Poll {
  let timer = 0;
  let failures = 0;
  let asking: AbortController | null = null;
  let stopped = false;

  const every = () => (typeof w.every === "number" ? w.every : w.every());
  const later = (wait: number) => {
    clearTimeout(timer);
    if (!stopped && !document.hidden) timer = window.setTimeout(() => void ask(), wait);
  };
  const ask = async () => {
    asking?.abort();
    const mine = (asking = new AbortController());
    let wait = 0;
    try {
      const answer = await get<T>(w.path(), mine.signal);
      if (mine.signal.aborted) return;
      failures = 0;
      w.got(answer);
      wait = every();
    } catch (e) {
      if (mine.signal.aborted) return;
      const error = e instanceof Error ? e : new Error(String(e));
      // What is refused is refused for a reason that a second does not change.
      wait = error instanceof Refused ? slowest : Math.min(slowest, every() * 2 ** Math.min(++failures, 6));
      w.failed?.(error, wait);
    }
    if (asking === mine) asking = null;
    later(wait);
  };
  const shown = () => {
    if (stopped) return;
    if (document.hidden) {
      clearTimeout(timer);
      asking?.abort();
    } else void ask();
  };
  document.addEventListener("visibilitychange", shown);
  if (!document.hidden) void ask();
  return {
    now: () => {
      if (!stopped) void ask();
    },
    stop: () => {
      stopped = true;
      clearTimeout(timer);
      asking?.abort();
      document.removeEventListener("visibilitychange", shown);
    },
  };
}
