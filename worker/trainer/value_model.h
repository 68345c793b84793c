// The value model of a job whose method trains one beside its policy (method.ppo): a classifier
// with one label, trained whole, without the policy's adapters, quantization and noise, and
// sharded, recomputed and offloaded as the policy is. What a checkpoint has of it is named
// "value_model...".
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/checkpoint/export.h"
#include "worker/trainer/frozen.h"
#include "worker/trainer/plan.h"

namespace tessera {

// Nothing: the method trains none.
std::optional<ModelSource> value_model_of_job(const v1::JobSpec& spec);

// Its layers, with recompute. Throws UserError (its config.json; a vocabulary that is not the
// policy's; heads that cannot be dealt as parallelism says).
std::unique_ptr<DecoderModel> make_value_layers(const v1::JobSpec& spec, const ModelConfig& policy);
// Those, sharded; null where the job has none. Not loaded. The mesh's groups must outlive the
// result.
std::unique_ptr<TrainableModel> build_value_model(const v1::JobSpec& spec,
                                                  const ModelConfig& policy, const Mesh& mesh,
                                                  at::Device device);
// Reads this rank's shards; `rank` is that in the mesh's shard group. Returns new_scores(). Throws
// UserError.
std::vector<std::string> load_value_model(const v1::JobSpec& spec, TrainableModel& model, int rank);

// Throws UserError: the first mistake in its files. Reads no weights.
void check_value_model(const v1::JobSpec& spec, const ModelConfig& policy);

// How it is written: to `directory`, with the tokenizer of `options`.
ExportOptions value_export(const v1::JobSpec& spec, const TrainableModel& model,
                           ExportOptions options, const std::filesystem::path& directory);

}  // namespace tessera
