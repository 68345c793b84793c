// A rank's part of a batch whose stream several ranks share.
#pragma once

#include "worker/batch.h"

namespace tessera {

// The batch as rank part.rank of part.size sees it. The stream is padded to a multiple of 2 * size
// tokens with one more ignored document, of `pad_token_id`; chunk_tokens follows from it. `whole`
// is of a whole stream, on the CPU, the same on all those ranks. With size 1 it is returned as it
// is. The batch beside it (Batch::mismatched) is split likewise. Tensors are charged to
// Owner::kData.
Batch part_of(const Batch& whole, const StreamPart& part, int64_t pad_token_id);

}  // namespace tessera
