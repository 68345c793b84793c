// One job as its page shows it: what the server had when it was asked, and the events since.
import type {
  Float,
  Job,
  JobEvent,
  JobHistory,
  MemorySnapshot,
  StepMetrics,
  Straggler,
  EvalMetrics,
} from "../api/types";
import { epoch } from "./format";
import { rankBusy } from "./ranks";
import { Thin } from "./thin";

export const MAX_KEPT = 500;
export const MAX_LOG = 2000;

export interface RankView {
  rank: number;
  last: MemorySnapshot;
  // Seconds since 1970.
  time: number;
  attempt: number;
}

type Values = [string, Float | undefined][];

function stepValues(step: StepMetrics): Values {
  const time = step.time;
  const values: Values = [
    ["loss", step.loss ?? 0],
    ["grad_norm", step.gradNorm ?? 0],
    ["learning_rate", step.learningRate ?? 0],
    ["tokens_per_second", step.tokensPerSecond ?? 0],
    ["num_tokens", Number(step.numTokens ?? 0)],
    ["epoch", step.epoch ?? 0],
  ];
  if (time !== undefined) {
    values.push(
      ["time/data", time.dataSeconds ?? 0],
      ["time/generation", time.generationSeconds ?? 0],
      ["time/reward", time.rewardSeconds ?? 0],
      ["time/forward", time.forwardSeconds ?? 0],
      ["time/backward", time.backwardSeconds ?? 0],
      ["time/communication", time.communicationWaitSeconds ?? 0],
      ["time/optimizer", time.optimizerSeconds ?? 0],
      ["time/total", time.totalSeconds ?? 0],
    );
  }
  const busy = rankBusy(step.rankTimes ?? []);
  if (busy !== null) {
    values.push(["busy/max", busy.max], ["busy/median", busy.median], ["busy/min", busy.min]);
  }
  return [...values, ...Object.entries(step.metrics ?? {})];
}

function evalValues(evaluation: EvalMetrics): Values {
  return [
    ["loss", evaluation.loss ?? 0],
    ["seconds", evaluation.seconds ?? 0],
    ...Object.entries(evaluation.metrics ?? {}),
  ];
}

function memoryValues(memory: MemorySnapshot): Values {
  return [
    ["current", Number(memory.currentBytes ?? 0)],
    ["peak", Number(memory.peakBytes ?? 0)],
    ["resident", Number(memory.rssBytes ?? 0)],
    ["host", Number(memory.hostCurrentBytes ?? 0)],
    ...(memory.owners ?? []).map((o): [string, number] => [
      `owner/${o.owner}`,
      Number(o.currentBytes ?? 0),
    ]),
    ...(memory.hostOwners ?? []).map((o): [string, number] => [
      `host/${o.owner}`,
      Number(o.currentBytes ?? 0),
    ]),
  ];
}

function keep(list: JobEvent[], event: JobEvent, most: number): void {
  list.push(event);
  if (list.length > most) list.splice(0, list.length - most);
}

export class JobView {
  readonly steps: Thin;
  readonly evals: Thin;
  // Of `rank`, over its steps.
  readonly memory: Thin;
  readonly ranks = new Map<number, RankView>();
  readonly milestones: JobEvent[];
  readonly checkpoints: JobEvent[];
  readonly generations: JobEvent[];
  readonly memoryPeaks = new Map<number, JobEvent>();
  readonly log: JobEvent[];
  readonly traces: JobEvent[];
  // What each rank exchanged with the others, as it told it last.
  readonly collectives = new Map<number, JobEvent>();
  // That keeps the others waiting now.
  straggler: Straggler | null = null;
  // Events since the server's history.
  numLive = 0;

  constructor(
    public job: Job,
    history: JobHistory,
    readonly rank: number,
  ) {
    this.steps = Thin.from(history.steps);
    this.evals = Thin.from(history.evals);
    for (const known of history.ranks ?? []) {
      this.ranks.set(known.rank ?? 0, {
        rank: known.rank ?? 0,
        last: known.last ?? {},
        time: epoch(known.time) ?? 0,
        attempt: job.attempt ?? 0,
      });
    }
    this.memory = Thin.from(history.ranks?.find((known) => (known.rank ?? 0) === rank)?.memory);
    this.milestones = history.milestones ?? [];
    for (const event of this.milestones) {
      if (event.state !== undefined) this.straggler = null;
      if (event.straggler !== undefined) this.noteStraggler(event.straggler);
    }
    this.checkpoints = history.checkpoints ?? [];
    this.generations = history.generations ?? [];
    for (const event of history.memoryPeaks ?? []) {
      this.memoryPeaks.set(event.memoryPeak?.rank ?? 0, event);
    }
    this.log = history.log ?? [];
    this.traces = history.traces ?? [];
    for (const event of history.collectives ?? []) this.addCollectives(event);
  }

  // Requires: revisions grow.
  apply(event: JobEvent): void {
    this.numLive += 1;
    const time = epoch(event.time) ?? 0;
    if (event.attempt !== undefined) this.job.attempt = event.attempt;
    if (event.step !== undefined) {
      this.steps.add(event.step.step ?? 0, time, stepValues(event.step));
      this.job.step = event.step;
    } else if (event.eval !== undefined) {
      this.evals.add(event.eval.step ?? 0, time, evalValues(event.eval));
    } else if (event.memory !== undefined) {
      this.addMemory(event, event.memory, time);
    } else if (event.log !== undefined) {
      keep(this.log, event, MAX_LOG);
    } else if (event.checkpoint !== undefined) {
      keep(this.checkpoints, event, MAX_KEPT);
      this.job.checkpoint = event.checkpoint;
    } else if (event.generation !== undefined) {
      keep(this.generations, event, MAX_KEPT);
    } else if (event.memoryPeak !== undefined) {
      this.memoryPeaks.set(event.memoryPeak.rank ?? 0, event);
    } else if (event.collectives !== undefined) {
      this.addCollectives(event);
    } else if (event.trace !== undefined) {
      keep(this.traces, event, MAX_KEPT);
    } else {
      keep(this.milestones, event, MAX_KEPT);
      if (event.state !== undefined) this.changeState(event);
      if (event.peak !== undefined) this.job.peak = event.peak;
      if (event.plan?.rehearsal !== undefined) this.job.rehearsal = event.plan.rehearsal;
      if (event.waiting?.reason !== undefined) this.job.reason = event.waiting.reason;
      if (event.straggler !== undefined) this.noteStraggler(event.straggler);
    }
  }

  private addMemory(event: JobEvent, memory: MemorySnapshot, time: number): void {
    const rank = memory.rank ?? 0;
    const attempt = event.attempt ?? 0;
    // Ranks of an earlier attempt are no more.
    for (const [known, view] of this.ranks) if (view.attempt < attempt) this.ranks.delete(known);
    this.ranks.set(rank, { rank, last: memory, time, attempt });
    if (rank === this.rank) this.memory.add(memory.step ?? 0, time, memoryValues(memory));
  }

  private addCollectives(event: JobEvent): void {
    const attempt = event.attempt ?? 0;
    // Of an earlier attempt.
    for (const [rank, known] of this.collectives)
      if ((known.attempt ?? 0) < attempt) this.collectives.delete(rank);
    this.collectives.set(event.collectives?.rank ?? 0, event);
  }

  private noteStraggler(straggler: Straggler): void {
    this.straggler = straggler.isOver ? null : straggler;
  }

  private changeState(event: JobEvent): void {
    // Of ranks that are no more.
    if (event.state?.state !== "RUNNING") this.straggler = null;
    const change = event.state!;
    if (change.state !== undefined) this.job.state = change.state;
    this.job.reason = change.reason ?? "";
    if (change.state === "FAILED" && change.failure !== undefined)
      this.job.failure = change.failure;
    if (change.state === "RUNNING" && event.time !== undefined) this.job.startTime ??= event.time;
    if (isOver(change.state) && event.time !== undefined) this.job.endTime = event.time;
  }
}

// Nothing follows. States that come to be later are taken to go on.
export function isOver(state: string | undefined): boolean {
  return state === "SUCCEEDED" || state === "FAILED" || state === "CANCELLED";
}

// How a state is to be looked at.
export function toneOf(state: string | undefined): "good" | "bad" | "busy" | "wait" | "quiet" {
  switch (state) {
    case "SUCCEEDED":
    case "READY":
      return "good";
    case "FAILED":
    case "LOST":
      return "bad";
    case "RUNNING":
      return "busy";
    case "CANCELLED":
      return "quiet";
    default:
      return "wait";
  }
}

export interface Progress {
  step: number;
  total: number;
  share: number;
  // Left, at the pace of the last steps; null where it is not known.
  secondsLeft: number | null;
}

export function progressOf(job: Job, steps?: Thin): Progress | null {
  const step = job.step?.step ?? 0;
  const total = job.step?.totalSteps ?? 0;
  if (total === 0) return null;
  const pace = steps?.recentMean("time/total", 50) ?? job.step?.time?.totalSeconds ?? null;
  const secondsLeft = job.state === "RUNNING" && pace !== null ? (total - step) * pace : null;
  return { step, total, share: Math.min(step / total, 1), secondsLeft };
}

// "sft", "dpo" ...: the case that is set.
export function methodOf(job: Job): string {
  return Object.keys(job.spec?.method ?? {})[0] ?? "";
}
