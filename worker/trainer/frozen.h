// Models beside the one that is trained, which nothing is learnt of: a reference, a teacher.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tessera/v1/job.pb.h"
#include "worker/model/safetensors.h"
#include "worker/trainer/model_source.h"
#include "worker/trainer/plan.h"

namespace tessera {

// What a job says of its reference, whatever its method; of a method without one the defaults.
struct ReferenceOptions {
  bool is_wanted = false;       // by the method
  std::filesystem::path path;   // of its own model; empty: the policy as it begins
  std::string field;            // of the job file, that names path
  bool is_precomputed = false;  // its scores are made before training
  int64_t precompute_rows = 0;  // a rank takes at a time then; 0: those of a microbatch
  int64_t sync_steps = 0;       // it follows the policy every so often; 0: never
  double sync_share = 0;        // of the policy in it then
};
ReferenceOptions reference_options(const v1::Method& method);

// The reference that a job holds in memory while it trains. Nothing: it has none, or the policy
// without its adapters, or scores that were made before.
std::optional<ModelSource> reference_in_memory(const v1::JobSpec& spec);
// That of ref_model, where scores are made before training; it goes when they are there.
std::optional<ModelSource> reference_to_precompute(const v1::JobSpec& spec);

// The teacher of a job that has one.
std::optional<ModelSource> teacher_of_job(const v1::JobSpec& spec);

// Nothing of it is trained. Call before it is sharded.
void freeze(DecoderModel& model);

// Layers as the policy's, quantized likewise, without noise, recompute or anything trained.
// Throws UserError (its config.json; a vocabulary that is not the policy's).
std::unique_ptr<DecoderModel> make_frozen_layers(const v1::JobSpec& spec, const ModelSource& source,
                                                 const ModelConfig& policy);
// Those, sharded as the policy and offloaded where its weights are. Not loaded. The mesh's
// groups must outlive the result.
std::unique_ptr<TrainableModel> build_frozen(const v1::JobSpec& spec, const ModelSource& source,
                                             const ModelConfig& policy, const Mesh& mesh,
                                             at::Device device);
// Reads this rank's shards. Throws UserError.
void load_frozen(const v1::JobSpec& spec, const ModelSource& source, TrainableModel& model,
                 int rank);

// Throws UserError: the first mistake in the files of the job's reference and teacher. Reads no
// weights.
void check_frozen(const v1::JobSpec& spec, const ModelConfig& policy);

// Moves a reference towards the policy: each weight becomes (1 - share) of its own and share of the
// policy's. Requires a policy that is trained whole. Source: SyncRefModelCallback in
// trl/trainer/callbacks.py.
void sync_reference(const TrainableModel& policy, const TrainableModel& reference, double share);

}  // namespace tessera
