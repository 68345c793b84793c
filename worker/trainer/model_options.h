// What a job asks of its model beyond config.json.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/v1/job.pb.h"
#include "worker/checkpoint/export.h"
#include "worker/model/config.h"
#include "worker/model/decoder.h"

namespace tessera {

// The model of the job: config.json's, with the job's dropout and the weight of the auxiliary loss.
// Throws UserError where it has none of what the job sets.
ModelConfig model_of_job(const v1::JobSpec& spec, ModelConfig config);

// The job as models have it that share no adapters and no quantization with the policy.
v1::JobSpec without_adapters(const v1::JobSpec& spec);

// What config.json says of the model where it scores documents.
std::optional<ClassifierConfig> classifier_config(const ModelConfig& config);

// A microbatch of a step, as the ranks that share it see it.
struct MicrobatchOfStep {
  int64_t step;  // from 0
  int64_t index;
  int64_t count;  // microbatches of the step
  int data_rank;  // that its rows were dealt to
};
// How the model runs forward to train on it. The random draws follow from the seed and the
// microbatch alone, so that a resumed run repeats them. `config` is model_of_job's.
ForwardOptions training_forward(const v1::JobSpec& spec, const ModelConfig& config,
                                const MicrobatchOfStep& microbatch);

}  // namespace tessera
