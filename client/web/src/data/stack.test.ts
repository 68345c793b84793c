import { expect, test } from "vitest";

import { align, smooth, stack } from "./stack";

test("the topmost line is the sum of all", () => {
  expect(
    stack([
      [1, 2, null],
      [10, null, null],
      [100, 200, null],
    ]),
  ).toEqual([
    [1, 2, null],
    [11, 2, null],
    [111, 202, null],
  ]);
  expect(stack([])).toEqual([]);
});

test("smoothing keeps a constant, gaps, and the level of the start", () => {
  expect(smooth([3, null, 3, 3], 0.9)).toEqual(
    [3, null, 3, 3].map((v) => (v === null ? null : expect.closeTo(v))),
  );
  const [first, second] = smooth([10, 0], 0.5);
  expect(first).toBe(10);
  expect(second).toBeCloseTo(10 / 3);
});

test("several jobs share one axis", () => {
  const [xs, a, b] = align([
    { xs: [1, 3], ys: [10, 30] },
    { xs: [2, 3], ys: [null, 33] },
  ]);
  expect(xs).toEqual([1, 2, 3]);
  expect(a).toEqual([10, null, 30]);
  expect(b).toEqual([null, null, 33]);
});
