// The parts of rehearsed microbatches that one rank of a cp axis has.
#pragma once

#include <optional>

#include "worker/trainer/rehearsal_data.h"

namespace tessera {

// Of `whole`, what rank `rank` of `size` that share the stream has, as part_of() splits a batch
// (worker/data/stream_part.h). The batch beside it likewise.
MicrobatchShape part_of(const MicrobatchShape& whole, int rank, int size);

// Of each step the parts of `rank`; none: of the rank with the most labels, as tokens are as many
// on each. With size 1 all of them.
HeaviestMicrobatches parts_of(HeaviestMicrobatches whole, int size, std::optional<int> rank = {});

}  // namespace tessera
