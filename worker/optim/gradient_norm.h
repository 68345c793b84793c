// The norm of all gradients, and what clipping makes of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/parallel/mesh.h"
#include "worker/parallel/shard.h"

namespace tessera {

// Adds up the norm of gradients, of all units at once or one by one.
class GradientNorm {
 public:
  // The mesh's groups must outlive this.
  explicit GradientNorm(const Mesh& mesh)
      : shards_(mesh.shard), world_(mesh.world), num_copies_(mesh.shape.dp_replicate) {}

  // Counts the gradients that these units have, on one device. Each once. Collective.
  void add(const std::vector<ShardedUnit*>& units);
  // The norm of all gradients so far, over all ranks. Collective.
  double total() const;

 private:
  Collectives& shards_;
  Collectives& world_;
  int num_copies_;
  at::TensorOptions options_ = at::kDouble;
  double on_cpu_ = 0;     // sum of squares of this rank
  at::Tensor on_device_;  // likewise, float64 [1]; where gradients are not on a CPU
};

// L2 norm of the units' gradients over all shards, the same on all ranks; NaN or infinite if any
// is. On a CPU each parameter is summed in float32 as ATen's kernel sums it whole on one rank, so
// that the norm is TRL's, whatever the number of ranks; see the source. Collective.
double gradient_norm(const std::vector<ShardedUnit*>& units, const Mesh& mesh);

// What to scale gradients of this norm by, so that it is at most max_norm (0: no limit).
// Source: torch.nn.utils.clip_grad_norm_.
double clip_scale(double norm, double max_norm);

}  // namespace tessera
