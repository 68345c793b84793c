// What can be found wrong with a job without training: `tessera-trainer --check`.
#pragma once

#include "tessera/v1/trainer.pb.h"
#include "worker/trainer/rehearsal.h"

namespace tessera {

// Looks at the model's config and weight headers, the tokenizer, the first documents of the data,
// the patterns and schemas of reward_funcs, and the output directory with the room on its disk.
// Changes nothing. Each part is checked though another failed. Where nothing is wrong the job is
// rehearsed, too.
v1::CheckResult check_job(const v1::JobSpec& spec, const RehearsalOptions& options = {});

// The same of a job that is only planned, maybe for other machines: files that are not here may be
// there, and nothing is asked of what the job writes to. Throws UserError: the first mistake.
void check_plan(const v1::JobSpec& spec);

}  // namespace tessera
