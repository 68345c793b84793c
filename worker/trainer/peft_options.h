// What a job's `peft` asks of its model.
#pragma once

#include "tessera/v1/job.pb.h"
#include "worker/model/lora.h"

namespace tessera {

// The adapters of the job. Those of peft.adapter_path are as its adapter_config.json says, but for
// the dropout; throws UserError where that is malformed, or says otherwise than a field of the job
// that does not have its default.
LoraOptions lora_of_job(const v1::Peft& peft);

// The same adapters without an adapter_path: what checkpoints name.
v1::Peft without_path(v1::Peft peft);

}  // namespace tessera
