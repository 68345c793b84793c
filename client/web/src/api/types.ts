// What the API answers: protobuf's JSON mapping of proto/tessera/v1 and server/telemetry's
// history.proto, as far as it is shown. Fields at their default are left out; 64-bit integers are
// strings.

export type Int64 = string;

// NaN travels as a string.
export type Float = number | "NaN" | "Infinity" | "-Infinity";

export interface Failure {
  kind?: string;
  field?: string;
  message?: string;
  rank?: number;
  outOfMemory?: OutOfMemory;
}

export interface OutOfMemory {
  requested?: MemoryCell;
  space?: string;
  cells?: MemoryCell[];
}

export interface MemoryCell {
  owner?: string;
  block?: string;
  phase?: string;
  bytes?: Int64;
}

export interface OwnerBytes {
  owner?: string;
  currentBytes?: Int64;
  atPeakBytes?: Int64;
  peakBytes?: Int64;
}

export interface PhaseBytes {
  phase?: string;
  peakBytes?: Int64;
}

export interface MemorySnapshot {
  rank?: number;
  step?: number;
  currentBytes?: Int64;
  peakBytes?: Int64;
  rssBytes?: Int64;
  peakRssBytes?: Int64;
  owners?: OwnerBytes[];
  hostCurrentBytes?: Int64;
  hostPeakBytes?: Int64;
  hostOwners?: OwnerBytes[];
  deviceLimitBytes?: Int64;
  phases?: PhaseBytes[];
}

export interface StepTime {
  dataSeconds?: number;
  forwardSeconds?: number;
  backwardSeconds?: number;
  communicationWaitSeconds?: number;
  optimizerSeconds?: number;
  totalSeconds?: number;
  generationSeconds?: number;
  rewardSeconds?: number;
}

export interface RankTime {
  busySeconds?: number;
  waitSeconds?: number;
}

export interface StepMetrics {
  step?: number;
  totalSteps?: number;
  loss?: Float;
  gradNorm?: Float;
  learningRate?: Float;
  numTokens?: Int64;
  tokensPerSecond?: Float;
  epoch?: Float;
  time?: StepTime;
  rankTimes?: RankTime[];
  metrics?: Record<string, Float>;
}

export interface Straggler {
  rank?: number;
  step?: number;
  busySeconds?: number;
  medianBusySeconds?: number;
  node?: string;
  isOver?: boolean;
}

export interface Collective {
  group?: string;
  sequence?: Int64;
  kind?: string;
  bytes?: Int64;
  seconds?: number;
  done?: boolean;
  isWaitedFor?: boolean;
}

export interface CollectiveRecord {
  rank?: number;
  step?: number;
  phase?: string;
  numIssued?: Int64;
  collectives?: Collective[];
}

export interface TraceSaved {
  rank?: number;
  step?: number;
  path?: string;
}

export interface EvalMetrics {
  step?: number;
  loss?: Float;
  seconds?: number;
  metrics?: Record<string, Float>;
}

export interface CheckpointSaved {
  step?: number;
  path?: string;
  bytes?: Int64;
  seconds?: number;
  stallSeconds?: number;
}

export interface LogLine {
  severity?: string;
  rank?: number;
  text?: string;
}

export interface FieldChange {
  field?: string;
  value?: string;
}

export interface StepCost {
  flops?: number;
  memoryBytes?: Int64;
  linkBytes?: Int64;
  hostBytes?: Int64;
  numOperators?: Int64;
  seconds?: number;
}

export interface Rehearsal {
  worldSize?: number;
  rank?: number;
  device?: string;
  peakBytes?: Int64;
  owners?: OwnerBytes[];
  hostPeakBytes?: Int64;
  hostOwners?: OwnerBytes[];
  numParameters?: Int64;
  numTrainableParameters?: Int64;
  numTokens?: Int64;
  cost?: StepCost;
  assumesFullRows?: boolean;
  phases?: PhaseBytes[];
}

export interface PlanChosen {
  changes?: FieldChange[];
  rehearsal?: Rehearsal;
  deviceMemoryBytes?: Int64;
  timeRatio?: number;
  reason?: string;
}

export interface PeakMeasured {
  predictedBytes?: Int64;
  measuredBytes?: Int64;
  rank?: number;
  device?: string;
  deviceRatio?: number;
}

export interface StateChange {
  state?: string;
  previous?: string;
  reason?: string;
  failure?: Failure;
}

export interface MemoryPeak {
  rank?: number;
  step?: number;
  peakBytes?: Int64;
  reached?: MemoryCell;
  cells?: MemoryCell[];
}

export interface GenerationTransition {
  rank?: number;
  step?: number;
  isWake?: boolean;
  seconds?: number;
}

export interface JobEvent {
  revision?: Int64;
  time?: string;
  attempt?: number;
  state?: StateChange;
  step?: StepMetrics;
  memory?: MemorySnapshot;
  log?: LogLine;
  checkpoint?: CheckpointSaved;
  eval?: EvalMetrics;
  memoryPeak?: MemoryPeak;
  plan?: PlanChosen;
  peak?: PeakMeasured;
  waiting?: { reason?: string; step?: number };
  generation?: GenerationTransition;
  collectives?: CollectiveRecord;
  trace?: TraceSaved;
  straggler?: Straggler;
}

export interface Placement {
  rank?: number;
  node?: string;
  deviceIndex?: number;
}

export interface JobSpec {
  name?: string;
  project?: string;
  method?: Record<string, unknown>;
  model?: { path?: string; dtype?: string };
  parallelism?: { numProcesses?: number };
  resources?: { device?: string; priority?: number };
  [section: string]: unknown;
}

export interface Job {
  id: string;
  spec?: JobSpec;
  // Of any name: states may be added.
  state?: string;
  reason?: string;
  failure?: Failure;
  attempt?: number;
  restarts?: number;
  revision?: Int64;
  createTime?: string;
  startTime?: string;
  endTime?: string;
  step?: StepMetrics;
  checkpoint?: CheckpointSaved;
  placements?: Placement[];
  rehearsal?: Rehearsal;
  planned?: FieldChange[];
  peak?: PeakMeasured;
}

export interface JobPage {
  jobs?: Job[];
  nextPageToken?: string;
}

export interface Device {
  index?: number;
  kind?: string;
  model?: string;
  memoryBytes?: Int64;
  job?: string;
}

export interface Node {
  name: string;
  state?: string;
  hostname?: string;
  devices?: Device[];
  lastSeenTime?: string;
  version?: string;
}

export interface ThinnedColumn {
  name?: string;
  mean?: Float[];
  min?: Float[];
  max?: Float[];
}

export interface ThinnedSeries {
  firstStep?: number[];
  lastStep?: number[];
  time?: number[];
  columns?: ThinnedColumn[];
  numEvents?: number[];
  eventsABucket?: number;
}

export interface RankHistory {
  rank?: number;
  last?: MemorySnapshot;
  time?: string;
  memory?: ThinnedSeries;
}

export interface JobHistory {
  revision?: Int64;
  isPartial?: boolean;
  steps?: ThinnedSeries;
  evals?: ThinnedSeries;
  ranks?: RankHistory[];
  milestones?: JobEvent[];
  checkpoints?: JobEvent[];
  generations?: JobEvent[];
  memoryPeaks?: JobEvent[];
  log?: JobEvent[];
  collectives?: JobEvent[];
  traces?: JobEvent[];
}

export interface Sparkline {
  step?: number[];
  loss?: Float[];
}

export interface LengthBin {
  begin?: Int64;
  end?: Int64;
  numDocuments?: Int64;
  numTokens?: Int64;
}

export interface LengthChoice {
  maxLength?: number;
  isOfJob?: boolean;
  numTruncatedDocuments?: Int64;
  numTruncatedTokens?: Int64;
  numLostDocuments?: Int64;
  numPaddingTokens?: Int64;
}

export interface DataProfile {
  numDocuments?: Int64;
  numTokens?: Int64;
  maxDocuments?: Int64;
  meanTokens?: number;
  quantiles?: { share?: number; numTokens?: Int64 }[];
  bins?: LengthBin[];
  choices?: LengthChoice[];
  advice?: { maxLength?: number; packingStrategy?: string; reasons?: string[] };
}
