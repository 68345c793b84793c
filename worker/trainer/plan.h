// From a spec to a model that can train: the ordered passes, and the only table of refused
// combinations.
#pragma once

#include <memory>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/memory/offload.h"
#include "worker/memory/side_stream.h"
#include "worker/model/decoder.h"
#include "worker/model/safetensors.h"
#include "worker/parallel/gate.h"
#include "worker/parallel/mesh.h"
#include "worker/parallel/shard.h"

namespace tessera {

// A model with everything around it that the spec asks for. Movable only before training.
struct TrainableModel {
  // Destroyed in reverse order: the model before the gates it refers to, these before the units,
  // and units before what they copy and reduce with.
  std::unique_ptr<ActivationOffload> offload;  // null where activations stay on the device
  std::unique_ptr<ReductionQueue> reductions;
  std::unique_ptr<SideStream> side;  // for shards in host memory
  std::vector<std::unique_ptr<ShardedUnit>> units;
  std::vector<std::unique_ptr<ShardGate>> gates;  // in the order of forward
  std::unique_ptr<DecoderModel> model;

  // What gradients, the optimizer and checkpoints are of.
  std::vector<ShardedUnit*> trainable_units() const;
  // Call before the backward of each microbatch. Without, each is the last of its step.
  void begin_backward(bool last_of_step);
  // Ends a backward: every gradient is reduced (ZeRO-1: in the last of a step), every gathered
  // weight freed (ZeRO-3).
  void finish_backward();
  // Call after writing units' shards.
  void weights_changed() const;
};

// Throws UserError when the spec combines what does not go together. build_model does so, too.
void refuse_combinations(const v1::JobSpec& spec);

// build -> lora -> quantize -> noise -> recompute. Parameters have no values yet. Requires a
// validated spec.
std::unique_ptr<DecoderModel> make_layers(const v1::JobSpec& spec, const ModelConfig& config);
// Some of these by themselves: adapters where the job has them, what they leave quantized where it
// is, and what is computed again in backward.
void lora_pass(const v1::JobSpec& spec, DecoderModel& model);
void quantize_pass(const v1::JobSpec& spec, DecoderModel& model);
void recompute_pass(const v1::JobSpec& spec, DecoderModel& model);

// A frozen model beside the policy has no backward: none of its weights waits for one, its
// activations are not offloaded, and its bytes are the reference's. The value model is trained as
// the policy is, and its units are named "value_model..." .
enum class ModelRole { kPolicy, kValue, kFrozen };
// The passes after these, offload -> shard; the last reads Parameter::trainable. The parameters are
// allocated (this rank's shards only) and not loaded. The mesh's groups must outlive the result.
TrainableModel shard_model(const v1::JobSpec& spec, std::unique_ptr<DecoderModel> model,
                           const Mesh& mesh, at::Device device,
                           ModelRole role = ModelRole::kPolicy);
// All of them.
TrainableModel build_model(const v1::JobSpec& spec, const ModelConfig& config, const Mesh& mesh,
                           at::Device device);

// The layouts that the trainable units of such a model have over `world_size` ranks: what a
// checkpoint holds. Allocates nothing.
std::vector<FlatLayout> trainable_layouts(DecoderModel& model, int world_size,
                                          ModelRole role = ModelRole::kPolicy);

// Reads this rank's shards, trainable and frozen, or gives new parameters their first values.
// `rank` is that in the mesh's shard group. Requires check_weights. Throws UserError.
void load_weights(const v1::JobSpec& spec, TrainableModel& trainable, const WeightFiles& weights,
                  int rank);

}  // namespace tessera
