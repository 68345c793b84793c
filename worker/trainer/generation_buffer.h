// What is scored of completions that were made at once, each of their labels on one rank: a sum
// over all ranks gathers it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/objectives/online.h"
#include "worker/parallel/collectives.h"

namespace tessera {

class GenerationBuffer {
 public:
  GenerationBuffer(const OnlineMethod::Needs& needs, int64_t num_labels, int64_t num_rollouts,
                   at::Device device);

  // `batch` is on the CPU; places_S are those of its sequences in the generation.
  void put(const BatchScores& scores, const Batch& batch, const std::vector<int64_t>& places_S);

  // Of all ranks. Collective, once.
  GenerationScores gather(Collectives& world) const;

 private:
  const OnlineMethod::Needs needs_;
  const int64_t num_labels_, num_rollouts_;
  at::Tensor all_;  // float32: of each label what is needed, then the values of rollouts' ends
};

}  // namespace tessera
