#include "worker/model/context_strategy.h"

#include <algorithm>

#include "worker/model/ulysses_attention.h"

namespace tessera {
namespace {

// Of values of that many heads a token, those that a rank has from all others together.
int64_t received(const AttentionShape& shape, int size, int64_t tokens, int64_t heads) {
  return tokens * heads * shape.head_dim * shape.element_bytes / size * (size - 1);
}

}  // namespace

int64_t gathered_bytes(const AttentionShape& shape, int size, int64_t stream_tokens) {
  return received(shape, size, stream_tokens, 2 * shape.num_kv_heads);
}

int64_t dealt_bytes(const AttentionShape& shape, int size, int64_t stream_tokens) {
  const int64_t kv_heads = std::max<int64_t>(shape.num_kv_heads, size);
  return received(shape, size, stream_tokens, 2 * (shape.num_heads + kv_heads)) / size;
}

ContextStrategy choose_context_strategy(const AttentionShape& shape, int size,
                                        int64_t stream_tokens) {
  const int64_t gathered = gathered_bytes(shape, size, stream_tokens);
  if (shape.deals_heads && can_deal_heads(shape.num_heads, shape.num_kv_heads, size) &&
      2 * dealt_bytes(shape, size, stream_tokens) <= gathered) {
    return ContextStrategy::kUlysses;
  }
  const int64_t whole =
      2 * stream_tokens * shape.num_kv_heads * shape.head_dim * shape.element_bytes;
  return whole <= kGatheredBytes ? ContextStrategy::kAllGather : ContextStrategy::kRing;
}

}  // namespace tessera
