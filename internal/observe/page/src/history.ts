// What /live has said since the page was opened, second by second, and rates and
// percentiles of it.

import type { Histogram, Live } from "./api.ts";

/** How much is kept: ten minutes at an answer a second. */
const keep = 600;

/** Percentiles and rates are those of so many seconds. */
export const span = 10;

export interface Sample {
  at: number; // seconds since 1970
  live: Live;
}

export class History {
  readonly samples: Sample[] = [];

  add(live: Live, at: number): void {
    const last = this.samples.at(-1);
    // Counters that have gone back are those of another process.
    if (last && live.received < last.live.received) this.samples.length = 0;
    this.samples.push({ at, live });
    if (this.samples.length > keep) this.samples.shift();
  }

  get last(): Live | undefined {
    return this.samples.at(-1)?.live;
  }

  /** The latest sample that is at least span older than number i, or the first. */
  private before(i: number): Sample | undefined {
    const to = this.samples[i];
    if (!to) return undefined;
    for (let k = i - 1; k >= 0; k--) {
      const s = this.samples[k];
      if (s && (to.at - s.at >= span || k === 0)) return s;
    }
    return undefined;
  }

  times(): number[] {
    return this.samples.map((s) => s.at);
  }

  gauge(of: (l: Live) => number): (number | null)[] {
    return this.samples.map((s) => of(s.live));
  }

  /** What a counter gained in a second, between each sample and the one before. */
  rates(of: (l: Live) => number): (number | null)[] {
    return this.samples.map((s, i) => {
      const b = this.samples[i - 1];
      return b && s.at > b.at ? (of(s.live) - of(b.live)) / (s.at - b.at) : null;
    });
  }

  percentiles(of: (l: Live) => Histogram, share: number): (number | null)[] {
    return this.samples.map((s, i) => {
      const b = this.before(i);
      return b ? percentile(of(b.live), of(s.live), s.live.bounds_seconds, share) : null;
    });
  }
}

/** A percentile, in milliseconds, of what a histogram gained, on a straight line within the
 * bucket that it falls into. Nothing gained is null. */
export function percentile(from: Histogram, to: Histogram, bounds: number[], share: number): number | null {
  const total = to.count - from.count;
  if (total <= 0) return null;
  const rank = share * total;
  let low = 0;
  let below = 0;
  for (let i = 0; i < bounds.length; i++) {
    const high = bounds[i] ?? 0;
    const upTo = (to.counts[i] ?? 0) - (from.counts[i] ?? 0);
    if (upTo >= rank && upTo > below) return 1000 * (low + ((high - low) * (rank - below)) / (upTo - below));
    low = high;
    below = Math.max(below, upTo);
  }
  return 1000 * low;
}
