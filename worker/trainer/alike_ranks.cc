#include "worker/trainer/alike_ranks.h"

#include <map>
#include <utility>

#include "worker/optim/adamw_state.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/stream_share.h"
#include "worker/trainer/value_model.h"

namespace tessera {
namespace {

// Of each shard, what an optimizer in 8 bits keeps of small parameters: it leaves them wide.
std::vector<int64_t> bytes_of_shards(const v1::JobSpec& spec, const ModelConfig& config,
                                     int num_shards) {
  std::vector<int64_t> bytes(static_cast<size_t>(num_shards));
  constexpr int64_t kBytes = 2 * sizeof(float);
  std::vector<FlatLayout> layouts = trainable_layouts(*make_layers(spec, config), num_shards);
  if (value_model_of_job(spec)) {
    const auto model = make_value_layers(spec, config);
    for (FlatLayout& layout : trainable_layouts(*model, num_shards, ModelRole::kValue))
      layouts.push_back(std::move(layout));
  }
  for (const FlatLayout& layout : layouts) {
    for (int shard = 0; shard < num_shards; ++shard)
      bytes[shard] += kBytes * num_small_elements(layout, shard);
  }
  return bytes;
}

}  // namespace

std::vector<AlikeRanks> alike_ranks(const v1::JobSpec& spec, const ModelConfig& config) {
  const MeshShape mesh = mesh_shape(spec.parallelism());
  const int num_shards = mesh.dp_shard * mesh.cp;
  std::vector<AlikeRanks> alike;
  if (spec.memory().optimizer_state_dtype() != "int8" || num_shards == 1) {
    for (int part = 0; part < mesh.cp; ++part) alike.push_back({{.context_rank = part}});
    return alike;
  }
  const std::vector<int64_t> bytes_of_shard = bytes_of_shards(spec, config, num_shards);
  std::map<std::pair<int64_t, int>, std::vector<int>> data_ranks;  // by bytes and context rank
  for (int rank = 0; rank < mesh.size(); ++rank)
    data_ranks[{bytes_of_shard[rank % num_shards], rank % mesh.cp}].push_back(rank / mesh.cp);
  for (auto& [key, ranks] : data_ranks)
    alike.push_back({{std::move(ranks), key.second}, key.first});
  return alike;
}

}  // namespace tessera
