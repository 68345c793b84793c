// What a job's `peft` asks of its model.
#pragma once

#include <filesystem>

#include "tessera/v1/job.pb.h"
#include "worker/checkpoint/export.h"
#include "worker/model/lora.h"

namespace tessera {

// The adapters of the job. Those of peft.adapter_path are as its adapter_config.json says, but for
// the dropout; throws UserError where that is malformed, or says otherwise than a field of the job
// that does not have its default.
LoraOptions lora_of_job(const v1::Peft& peft);

// The same, read once, and what checkpoints call it: a Peft without an adapter_path.
struct AdapterOfJob {
  LoraOptions lora;
  v1::Peft peft;
};
AdapterOfJob adapter_of_job(const v1::Peft& peft);

// Has an export write the adapters of `model`, which was loaded from `model_path`, as PEFT does.
void write_as_adapter(DecoderModel& model, const LoraOptions& lora,
                      const std::filesystem::path& model_path, ExportOptions& options);

}  // namespace tessera
