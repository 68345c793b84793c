#include "worker/trainer/stream_share.h"

#include <algorithm>
#include <string>

#include "worker/data/stream_part.h"
#include "worker/errors.h"
#include "worker/model/ulysses_attention.h"

namespace tessera {
namespace {

// Nothing: by the stream.
std::optional<ContextStrategy> strategy_of(const v1::Parallelism& parallelism) {
  if (parallelism.cp_strategy() == "allgather") return ContextStrategy::kAllGather;
  if (parallelism.cp_strategy() == "ring") return ContextStrategy::kRing;
  if (parallelism.cp_strategy() == "ulysses") return ContextStrategy::kUlysses;
  return std::nullopt;
}

}  // namespace

void check_strategy(const v1::Parallelism& parallelism, const ModelConfig& config) {
  if (strategy_of(parallelism) != ContextStrategy::kUlysses ||
      can_deal_heads(config.num_heads, config.num_kv_heads, parallelism.cp_size()))
    return;
  throw UserError(
      "parallelism.cp_strategy",
      "parallelism.cp_strategy is ulysses, must be another where heads cannot be dealt: "
      "the model has " +
          std::to_string(config.num_heads) + " query heads and " +
          std::to_string(config.num_kv_heads) +
          " key/value heads; the former must be a multiple of parallelism.cp_size (" +
          std::to_string(parallelism.cp_size()) + "), the latter a multiple or a divisor of it");
}

MeshShape mesh_shape(const v1::Parallelism& parallelism) {
  return {.dp_replicate = parallelism.dp_replicate_size(),
          .dp_shard = parallelism.dp_shard_size(),
          .cp = parallelism.cp_size()};
}

StreamShare::StreamShare(const v1::JobSpec& spec, const ModelConfig& config, const Mesh& mesh)
    : parallelism_(spec.parallelism()),
      exchange_(std::make_unique<ContextGroup>(mesh.context)),
      place_{.rank = mesh.context.rank(),
             .size = mesh.context.size(),
             .strategy = strategy_of(spec.parallelism()).value_or(ContextStrategy::kAllGather),
             .exchange = exchange_.get()},
      pad_token_id_(std::max<int64_t>(0, config.pad_token_id)) {
  check_strategy(spec.parallelism(), config);
  if (strategy_of(spec.parallelism())) return;
  shape_ = AttentionShape{config.num_heads, config.num_kv_heads, config.head_dim,
                          spec.model().dtype() == "bfloat16" ? 2 : 4};
}

void StreamShare::share_with(const ModelConfig& other) {
  check_strategy(parallelism_, other);
  if (shape_ && !can_deal_heads(other.num_heads, other.num_kv_heads, place_.size))
    shape_->deals_heads = false;
}

StreamPart StreamShare::place(int64_t stream_tokens) const {
  StreamPart place = place_;
  if (!shape_) return place;
  const int64_t chunks = place.num_chunks();
  const int64_t padded = (stream_tokens + chunks - 1) / chunks * chunks;
  place.strategy = choose_context_strategy(*shape_, place.size, padded);
  return place;
}

Batch StreamShare::of(const Batch& whole) const {
  return part_of(whole, place(whole.tokens_T.size(0)), pad_token_id_);
}

}  // namespace tessera
