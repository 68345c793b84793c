// The parts of rehearsed microbatches that one rank of a cp axis has.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/trainer/rehearsal_data.h"

namespace tessera {

// Of `whole`, what rank `rank` of `size` that share the stream has, as part_of() splits a batch
// (worker/data/stream_part.h). The batch beside it likewise.
MicrobatchShape part_of(const MicrobatchShape& whole, int rank, int size);

// Of documents that `size` ranks share: the most keys of others that a rank attends to, as a ring
// brings them (worker/model/ring_attention.cc).
int64_t most_keys_of_others(const std::vector<int64_t>& cu_seqlens, int size);

// Of each step the parts of `rank`; none: of the rank with the most labels, as tokens are as many
// on each. With size 1 all of them.
HeaviestMicrobatches parts_of(HeaviestMicrobatches whole, int size, std::optional<int> rank = {});

}  // namespace tessera
