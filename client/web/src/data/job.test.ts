import { expect, test } from "vitest";

import type { JobEvent } from "../api/types";
import { adviceFor } from "./advice";
import { isOver, JobView, progressOf, toneOf } from "./job";
import { lags, rankBusy, waitedFor } from "./ranks";

function viewOf(): JobView {
  return new JobView({ id: "a", state: "RUNNING", attempt: 1 }, { revision: "5" }, 0);
}

function step(number: number, loss: number): JobEvent {
  return {
    time: "2026-01-01T00:00:00Z",
    attempt: 1,
    step: { step: number, totalSteps: 10, loss, time: { totalSeconds: 2 } },
  };
}

test("events move the job on", () => {
  const view = viewOf();
  view.apply(step(1, 4));
  view.apply(step(2, 3));
  view.apply({ log: { text: "hello" } });
  view.apply({ checkpoint: { step: 2, path: "/out/checkpoint-2" } });
  view.apply({ eval: { step: 2, loss: 3.5 } });
  expect(view.steps.line("loss").mean).toEqual([4, 3]);
  expect(view.evals.last("loss")).toBe(3.5);
  expect(view.log).toHaveLength(1);
  expect(view.job.checkpoint?.step).toBe(2);
  expect(progressOf(view.job, view.steps)).toEqual({
    step: 2,
    total: 10,
    share: 0.2,
    secondsLeft: 16,
  });
});

test("a value of 0, which JSON leaves out, is a value", () => {
  const view = viewOf();
  view.apply({ step: { step: 1, totalSteps: 2 } });
  expect(view.steps.line("loss").mean).toEqual([0]);
});

test("a failure stays with the job", () => {
  const view = viewOf();
  view.apply({
    time: "2026-01-01T00:00:09Z",
    state: { state: "FAILED", reason: "no", failure: { kind: "MEMORY", message: "no" } },
  });
  expect(view.job.state).toBe("FAILED");
  expect(view.job.failure?.kind).toBe("MEMORY");
  expect(view.job.endTime).toBe("2026-01-01T00:00:09Z");
  expect(isOver(view.job.state)).toBe(true);
});

test("a failed attempt that is tried again does not fail the job", () => {
  const view = viewOf();
  view.apply({ state: { state: "RESTARTING", failure: { kind: "DEVICE", message: "killed" } } });
  expect(view.job.failure).toBeUndefined();
});

test("ranks of an earlier attempt go", () => {
  const view = viewOf();
  view.apply({ attempt: 1, memory: { rank: 0, currentBytes: "1" } });
  view.apply({ attempt: 1, memory: { rank: 1, currentBytes: "2" } });
  view.apply({
    attempt: 2,
    memory: { currentBytes: "3", owners: [{ owner: "parameters", currentBytes: "3" }] },
  });
  expect([...view.ranks.keys()]).toEqual([0]);
  expect(view.memory.line("owner/parameters").mean).toEqual([null, 3]);
});

test("states that come to be later are looked at as waiting", () => {
  expect(toneOf("SUSPENDED")).toBe("wait");
  expect(isOver("SUSPENDED")).toBe(false);
  const view = viewOf();
  view.apply({ state: { state: "SUSPENDED", reason: "asked to" } });
  expect(view.job.state).toBe("SUSPENDED");
});

test("a rank that is silent and behind is a straggler; one that is a step behind is not", () => {
  const rank = (number: number, at: number, time: number) => ({
    rank: number,
    last: { step: at },
    time,
    attempt: 1,
  });
  const [first, second, third] = lags([rank(0, 100, 1000), rank(1, 99, 999), rank(2, 80, 980)]);
  expect(first!.isStraggler).toBe(false);
  expect(second!.isStraggler).toBe(false);
  expect(third).toEqual({ rank: 2, step: 80, steps: 20, silentSeconds: 20, isStraggler: true });
});

test("the middle of two ranks is the faster one, as the service has it", () => {
  const busy = (...seconds: number[]) => rankBusy(seconds.map((busySeconds) => ({ busySeconds })));
  expect(busy()).toBeNull();
  expect(busy(2, 1)).toEqual({ min: 1, median: 1, max: 2 });
  expect(busy(9, 1, 5, 7)).toEqual({ min: 1, median: 5, max: 9 });
  const view = viewOf();
  view.apply({ step: { step: 1, rankTimes: [{ busySeconds: 3 }, { waitSeconds: 3 }] } });
  expect(view.steps.last("busy/max")).toBe(3);
  expect(view.steps.last("busy/min")).toBe(0);
});

test("a straggler stays until it keeps up, or its attempt ends", () => {
  const view = viewOf();
  view.apply({ straggler: { rank: 1, node: "n", busySeconds: 2, medianBusySeconds: 1 } });
  expect(view.straggler?.rank).toBe(1);
  view.apply({ straggler: { rank: 1, isOver: true } });
  expect(view.straggler).toBeNull();
  view.apply({ straggler: { rank: 1 } });
  view.apply({ state: { state: "RESTARTING" } });
  expect(view.straggler).toBeNull();
});

test("a straggler of before the page was opened is known", () => {
  const events = [{ state: { state: "RUNNING" } }, { straggler: { rank: 2, node: "n" } }];
  const view = (milestones: JobEvent[]) => new JobView({ id: "a" }, { milestones }, 0);
  expect(view(events).straggler?.rank).toBe(2);
  expect(view([...events, { state: { state: "QUEUED" } }]).straggler).toBeNull();
});

test("records of an earlier attempt go, and traces stay", () => {
  const view = viewOf();
  view.apply({ attempt: 1, collectives: { rank: 1 } });
  view.apply({ attempt: 2, collectives: { phase: "data" } });
  view.apply({ attempt: 2, trace: { rank: 1, step: 3, path: "/out/traces/step-3-rank-1.json" } });
  expect([...view.collectives.keys()]).toEqual([0]);
  expect(view.traces).toHaveLength(1);
});

test("a rank waits in the last exchange that it waits for and that is not done", () => {
  const gather = { kind: "all_gather", sequence: "4", group: "dp_shard" };
  expect(waitedFor({})).toBeNull();
  expect(waitedFor({ collectives: [{ ...gather, done: true }] })).toBeNull();
  expect(waitedFor({ collectives: [gather] })).toBeNull();
  expect(waitedFor({ collectives: [{ ...gather, isWaitedFor: true }, gather] })).toEqual({
    ...gather,
    isWaitedFor: true,
  });
});

test.each(["USER", "MEMORY", "DEVICE", "NETWORK", "HANG", "TIME", "BUG"])(
  "%s has advice",
  (kind) => {
    expect(adviceFor({ kind }, "a").steps.length).toBeGreaterThan(0);
  },
);

test("a kind that is not known is named", () => {
  expect(adviceFor({ kind: "SOLAR" }, "a").meaning).toBe("SOLAR");
});
