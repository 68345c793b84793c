// What to do about a failure.
import type { Failure } from "../api/types";

export interface Advice {
  // What kind of failure it is, in words.
  meaning: string;
  isRetried: boolean;
  steps: string[];
}

const BY_KIND: Record<string, (failure: Failure, id: string) => Advice> = {
  USER: (failure) => ({
    meaning: "A mistake in the job, the model or the data",
    isRetried: false,
    steps: [
      failure.field
        ? `Change ${failure.field} in the job file, as the sentence above says.`
        : "Mend what the sentence above names.",
      "Submit the job again. With the same output_dir it goes on from its latest checkpoint.",
    ],
  }),
  MEMORY: () => ({
    meaning: "Out of memory",
    isRetried: false,
    steps: [
      "Run tessera plan on the job file: it lists the techniques that would make the job fit, with what each saves and costs.",
      "Or set memory.auto: true, and the fastest combination that fits is chosen. memory.on_oom: replan does so when a job runs out.",
    ],
  }),
  DEVICE: (_, id) => ({
    meaning: "A device or a disk failed, or a process was killed",
    isRetried: true,
    steps: [
      `Look at the last lines of the log here, or with tessera logs ${id}.`,
      "See whether the machine's disk is full, and whether its kernel killed the process (dmesg).",
    ],
  }),
  NETWORK: () => ({
    meaning: "A peer or the rendezvous was lost",
    isRetried: true,
    steps: [
      "See on the page of nodes whether a machine is LOST.",
      "Submit the job again: it goes on from its latest checkpoint.",
    ],
  }),
  HANG: () => ({
    meaning: "A rank reported nothing for longer than resources.hang_timeout",
    isRetried: true,
    steps: [
      "The sentence above names the rank that the others waited for; under Ranks is what each told of its exchanges.",
      "If a step may take that long, raise resources.hang_timeout.",
    ],
  }),
  TIME: () => ({
    meaning: "It had no time left",
    isRetried: false,
    steps: [
      "Raise resources.time_limit or resources.deadline and submit the job again: it goes on from its latest checkpoint.",
    ],
  }),
  BUG: (_, id) => ({
    meaning: "An error of Tessera's own",
    isRetried: true,
    steps: [`Please report it, with the output of tessera logs ${id}.`],
  }),
};

export function adviceFor(failure: Failure, id: string): Advice {
  const known = BY_KIND[failure.kind ?? ""];
  return (
    known?.(failure, id) ?? { meaning: failure.kind ?? "It failed", isRetried: false, steps: [] }
  );
}
