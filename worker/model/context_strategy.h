// Which strategy of context parallelism a stream gets where the job leaves it open.
#pragma once

#include <cstdint>

#include "worker/batch.h"

namespace tessera {

struct AttentionShape {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t element_bytes;    // of queries, keys and values
  bool deals_heads = true;  // else those of another model on the same stream cannot be dealt
};

// Of one layer, what a rank receives in forward: with allgather, and at most with ring, the others'
// keys and values; with ulysses the others' tokens of its heads' queries, keys, values, and
// outputs.
int64_t gathered_bytes(const AttentionShape& shape, int size, int64_t stream_tokens);
int64_t dealt_bytes(const AttentionShape& shape, int size, int64_t stream_tokens);

// ulysses where heads can be dealt and it moves at most half of what gathering moves: nothing hides
// its exchanges, while ring's keys travel during attention. Else allgather where the keys and
// values of the stream are at most kGatheredBytes: then memory is no matter, and one large piece of
// attention is quicker than many small ones. Else ring. The same on all ranks.
inline constexpr int64_t kGatheredBytes = int64_t{16} << 20;
ContextStrategy choose_context_strategy(const AttentionShape& shape, int size,
                                        int64_t stream_tokens);

}  // namespace tessera
