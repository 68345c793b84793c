// Lines put on top of each other, and lines made smooth.

export type Values = readonly (number | null)[];

// Entry i of each result is the sum of entries i of the lines up to it, the topmost last. Where a
// line has no value it adds nothing; where none has one there is none.
export function stack(lines: readonly Values[]): (number | null)[][] {
  const length = lines[0]?.length ?? 0;
  const empty = Array.from({ length }, (_, i) => lines.every((line) => line[i] == null));
  const sums = new Array<number>(length).fill(0);
  return lines.map((line) =>
    line.map((value, i) => {
      sums[i] = sums[i]! + (value ?? 0);
      return empty[i] ? null : sums[i]!;
    }),
  );
}

// A running mean in which each value weighs 1 - keep; its start is not drawn to 0. keep is in [0, 1).
export function smooth(values: Values, keep: number): (number | null)[] {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = keep * mean + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return mean / weight;
  });
}

// The union of several x axes, and each job's values on it.
export function align(
  series: readonly { xs: readonly number[]; ys: Values }[],
): [number[], ...(number | null)[][]] {
  const xs = [...new Set(series.flatMap((one) => one.xs))].sort((a, b) => a - b);
  const index = new Map(xs.map((x, i) => [x, i]));
  const rows = series.map((one) => {
    const row = new Array<number | null>(xs.length).fill(null);
    one.xs.forEach((x, i) => (row[index.get(x)!] = one.ys[i] ?? null));
    return row;
  });
  return [xs, ...rows];
}
