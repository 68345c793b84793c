// Values over steps in a bounded number of buckets, as the server thins them
// (server/telemetry/thin_series.h): it begins with what the server sent and goes on with live events.
import type { Float, ThinnedSeries } from "../api/types";

interface Cell {
  sum: number;
  count: number;
  min: number;
  max: number;
}

interface Bucket {
  firstStep: number;
  lastStep: number;
  // Seconds since 1970 of its last event.
  time: number;
  weight: number;
}

// One entry a bucket; null where there is no value.
export interface Line {
  mean: (number | null)[];
  min: (number | null)[];
  max: (number | null)[];
}

export type Axis = "step" | "time";

export function finite(value: Float | undefined): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

const EMPTY: Readonly<Cell> = { sum: 0, count: 0, min: 0, max: 0 };

function joined(a: Cell, b: Cell): Cell {
  if (a.count === 0) return b;
  if (b.count === 0) return a;
  return {
    sum: a.sum + b.sum,
    count: a.count + b.count,
    min: Math.min(a.min, b.min),
    max: Math.max(a.max, b.max),
  };
}

export class Thin {
  private buckets: Bucket[] = [];
  private columns = new Map<string, Cell[]>();
  private perBucket = 1;

  // Requires: maxBuckets is even and at least 2.
  constructor(private readonly maxBuckets = 2048) {}

  static from(series: ThinnedSeries | undefined, maxBuckets = 2048): Thin {
    const thin = new Thin(maxBuckets);
    const first = series?.firstStep ?? [];
    thin.buckets = first.map((step, i) => ({
      firstStep: step,
      lastStep: series?.lastStep?.[i] ?? step,
      time: series?.time?.[i] ?? 0,
      weight: series?.numEvents?.[i] ?? 1,
    }));
    thin.perBucket = series?.eventsABucket ?? 1;
    for (const column of series?.columns ?? []) {
      const cells = first.map((_, i): Cell => {
        const mean = finite(column.mean?.[i]);
        if (mean === null) return EMPTY;
        const min = finite(column.min?.[i]) ?? mean;
        const max = finite(column.max?.[i]) ?? mean;
        const count = thin.buckets[i]!.weight;
        return { sum: mean * count, count, min, max };
      });
      thin.columns.set(column.name ?? "", cells);
    }
    return thin;
  }

  get length(): number {
    return this.buckets.length;
  }

  get lastStep(): number {
    return this.buckets.at(-1)?.lastStep ?? 0;
  }

  names(): string[] {
    return [...this.columns.keys()];
  }

  has(name: string): boolean {
    return this.columns.has(name);
  }

  // A step below the last one says that the job went back to a checkpoint: what was there from that
  // step on is forgotten.
  add(step: number, time: number, values: Iterable<readonly [string, Float | undefined]>): void {
    if (step < this.lastStep) this.rewind(step);
    if (this.needsBucket() && this.buckets.length >= this.maxBuckets) this.halve();
    if (this.needsBucket()) {
      this.buckets.push({ firstStep: step, lastStep: step, time, weight: 0 });
      for (const cells of this.columns.values()) cells.push(EMPTY);
    }
    const bucket = this.buckets.at(-1)!;
    bucket.lastStep = step;
    bucket.time = time;
    bucket.weight += 1;
    for (const [name, value] of values) {
      const number = finite(value);
      if (number === null) continue;
      let cells = this.columns.get(name);
      if (cells === undefined) {
        cells = this.buckets.map(() => EMPTY);
        this.columns.set(name, cells);
      }
      const last = cells.length - 1;
      cells[last] = joined(cells[last]!, { sum: number, count: 1, min: number, max: number });
    }
  }

  xs(axis: Axis): number[] {
    return this.buckets.map((bucket) => (axis === "step" ? bucket.lastStep : bucket.time));
  }

  // All null for a name that is not there.
  line(name: string): Line {
    const cells = this.columns.get(name) ?? this.buckets.map(() => EMPTY);
    const pick = (value: (cell: Cell) => number) =>
      cells.map((cell) => (cell.count === 0 ? null : value(cell)));
    return {
      mean: pick((cell) => cell.sum / cell.count),
      min: pick((cell) => cell.min),
      max: pick((cell) => cell.max),
    };
  }

  last(name: string): number | null {
    const cell = this.columns.get(name)?.findLast((candidate) => candidate.count > 0);
    return cell === undefined ? null : cell.sum / cell.count;
  }

  // Of the last `count` buckets that have it.
  recentMean(name: string, count: number): number | null {
    const cells = (this.columns.get(name) ?? []).filter((cell) => cell.count > 0).slice(-count);
    if (cells.length === 0) return null;
    return cells.reduce((sum, cell) => sum + cell.sum / cell.count, 0) / cells.length;
  }

  private needsBucket(): boolean {
    const last = this.buckets.at(-1);
    return last === undefined || last.weight >= this.perBucket;
  }

  private rewind(step: number): void {
    while (this.buckets.length > 0 && this.buckets.at(-1)!.firstStep >= step) this.buckets.pop();
    for (const cells of this.columns.values()) cells.length = this.buckets.length;
    const last = this.buckets.at(-1);
    if (last !== undefined) last.lastStep = Math.min(last.lastStep, step - 1);
  }

  private halve(): void {
    this.buckets = pairs(this.buckets, (a, b) => ({
      firstStep: a.firstStep,
      lastStep: b.lastStep,
      time: b.time,
      weight: a.weight + b.weight,
    }));
    for (const [name, cells] of this.columns) this.columns.set(name, pairs(cells, joined));
    this.perBucket *= 2;
  }
}

function pairs<T>(items: T[], join: (a: T, b: T) => T): T[] {
  const joinedItems: T[] = [];
  for (let i = 0; i < items.length; i += 2) {
    const next = items[i + 1];
    joinedItems.push(next === undefined ? items[i]! : join(items[i]!, next));
  }
  return joinedItems;
}
