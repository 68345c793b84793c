import { expect, test } from "vitest";

import { Thin } from "./thin";

const loss = (value: number) => [["loss", value]] as const;

test("a history and the events after it make one line", () => {
  const thin = Thin.from({
    firstStep: [1, 2],
    lastStep: [1, 2],
    time: [10, 11],
    numEvents: [1, 1],
    eventsABucket: 1,
    columns: [{ name: "loss", mean: [4, "NaN"] }],
  });
  thin.add(3, 12, loss(2));
  expect(thin.xs("step")).toEqual([1, 2, 3]);
  expect(thin.xs("time")).toEqual([10, 11, 12]);
  expect(thin.line("loss").mean).toEqual([4, null, 2]);
  expect(thin.last("loss")).toBe(2);
});

test("live events fill buckets as full as those of the history", () => {
  const thin = Thin.from({
    firstStep: [1, 5],
    lastStep: [4, 6],
    time: [1, 2],
    numEvents: [4, 2],
    eventsABucket: 4,
    columns: [{ name: "loss", mean: [1, 3], min: [0, 3], max: [2, 3] }],
  });
  thin.add(7, 3, loss(6));
  thin.add(8, 4, loss(0));
  thin.add(9, 5, loss(9));
  expect(thin.xs("step")).toEqual([4, 8, 9]);
  expect(thin.line("loss")).toEqual({ mean: [1, 3, 9], min: [0, 0, 9], max: [2, 6, 9] });
});

test("a million steps stay bounded, and means stay means", () => {
  const thin = new Thin(64);
  for (let step = 1; step <= 1_000_000; step++) thin.add(step, step, loss(step % 2));
  expect(thin.length).toBeLessThanOrEqual(64);
  expect(thin.length).toBeGreaterThan(16);
  expect(thin.lastStep).toBe(1_000_000);
  const { mean, min, max } = thin.line("loss");
  expect(mean[0]).toBeCloseTo(0.5, 3);
  expect([min[0], max[0]]).toEqual([0, 1]);
});

test("a step back to a checkpoint forgets what came after it", () => {
  const thin = new Thin(64);
  for (let step = 1; step <= 20; step++) thin.add(step, step, loss(1));
  thin.add(11, 100, loss(5));
  expect(thin.xs("step")).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
  expect(thin.line("loss").mean.at(-1)).toBe(5);
  expect(thin.xs("time").at(-1)).toBe(100);
});

test("columns may begin late and have gaps", () => {
  const thin = new Thin(8);
  thin.add(1, 1, loss(1));
  thin.add(2, 2, [
    ["loss", "NaN"],
    ["reward", 3],
  ]);
  expect(thin.line("loss").mean).toEqual([1, null]);
  expect(thin.line("reward").mean).toEqual([null, 3]);
  expect(thin.line("nothing").mean).toEqual([null, null]);
  expect(thin.recentMean("loss", 5)).toBe(1);
});
