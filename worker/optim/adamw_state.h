// What AdamW remembers of one unit's shard, and the update it makes with it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint.h"
#include "worker/kernels/adamw_ops.h"
#include "worker/parallel/shard.h"

namespace tessera {

// How running means are stored. Sources: for kInt8, bitsandbytes' AdamW with optim_bits=8.
//
// kBfloat16: rounded at random, to the two neighbours with probabilities that keep the mean exact.
// Rounding to the nearest would not do: with beta2 = 0.999 a step changes the mean square by less
// than half a unit of bfloat16 in most cases, so that it would never fall.
// kInt8: in blocks of 256 with a scale each, in the dynamic maps; parameters of fewer than 4096
// elements in float32.
enum class AdamWStateType { kFloat32, kBfloat16, kInt8 };

// Elements of a rank's shard whose states kInt8 leaves in float32.
int64_t num_small_elements(const FlatLayout& layout, int rank);

class AdamWState {
 public:
  struct Options {
    AdamWStateType type = AdamWStateType::kFloat32;
    bool offload = false;  // lies in host memory
  };
  // Zeros, for the shard of rank `rank`.
  AdamWState(const ShardedUnit& unit, int rank, const Options& options);

  struct Update {
    int64_t step;  // from 1
    double learning_rate;
    double gradient_scale;
    double beta1, beta2, epsilon, weight_decay;
  };
  // weights and gradients: float32 [shard_numel], where the state lies.
  void update(const at::Tensor& weights, const at::Tensor& gradients, const Update& update);

  // For checkpoints.
  std::vector<FlatShard> vectors() const;

 private:
  // A run of the shard whose elements are updated alike.
  struct Segment {
    int64_t begin;
    int64_t numel;
    bool decays;
    int64_t small_begin;  // in small_, where it lies there; else -1
  };
  void list_segments(const ShardedUnit& unit, int rank);
  void update_segment(const Segment& segment, const at::Tensor& weights,
                      const at::Tensor& gradients, const AdamWStep& step, uint32_t draw);

  Options options_;
  std::string name_;
  int64_t used_numel_;  // of the whole unit
  int64_t first_;       // of this rank's elements, in it
  std::vector<Segment> segments_;
  AdamWMeans means_;         // [shard_numel], in the type stored
  AdamWMeans scales_;        // kInt8: [shard_numel / kAdamWBlock]
  AdamWMeans small_;         // kInt8: float32, of parameters too small to be quantized
  int64_t small_first_ = 0;  // of this rank's part of these, in all of the unit's
  int64_t small_numel_ = 0;  // of the whole unit
};

}  // namespace tessera
