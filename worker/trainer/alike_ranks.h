// Which ranks of a job hold as many bytes as each other.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/model/config.h"
#include "worker/trainer/rehearsal_data.h"

namespace tessera {

// Ranks that hold the same, and the bytes that they hold of what others do not.
struct AlikeRanks {
  RankChoice ranks = {};
  int64_t bytes = 0;
};

// Shards are of one size, but for small parameters; ranks that share a stream have other labels of
// it, and see other keys. Those that hold most come last.
std::vector<AlikeRanks> alike_ranks(const v1::JobSpec& spec, const ModelConfig& config);

}  // namespace tessera
