// A job's memory before it runs: the code of a training step on tensors without data, under a
// ledger that counts them, with collectives of any world size that send nothing. Nothing is
// computed, and of the model only config.json is read.
//
// Rehearsed is the rank with the heaviest microbatch, and where ranks hold different amounts those
// that may hold more, as ranks that share a stream do, of which no more than four are: two steps,
// an evaluation where the job has one, and with asynchronous saves a step beside a save of which
// nothing is written yet, which is a bound. The numbers are those of the moment at which most is
// held. What depends on values in a run is taken to be even: a mixture's experts get the same
// number of tokens each.
#pragma once

#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/trainer/rehearsal_data.h"

namespace tessera {

struct RehearsalOptions {
  // Ranks on a machine, which has as many cores as this one; 0: all of them.
  int ranks_per_machine = 0;
};

// Requires a validated spec with defaults filled in; `data` may serve any number of jobs. One
// rehearsal runs at a time in a process, the others wait. StepCost.seconds is left to whoever knows
// the device. Throws UserError (config.json, combinations that are refused).
v1::Rehearsal rehearse(const v1::JobSpec& spec, RehearsalData& data,
                       const RehearsalOptions& options = {});

// The same of a job that leaves nothing to it: see generation_choice.h.
v1::Rehearsal rehearse_decided(const v1::JobSpec& spec, RehearsalData& data,
                               const RehearsalOptions& options);

}  // namespace tessera
