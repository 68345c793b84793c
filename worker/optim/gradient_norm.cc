#include "worker/optim/gradient_norm.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

// Partial sums ATen's float32 norm keeps on a CPU. Gradients of embeddings are so uneven that what
// these sums lose shows in the fifth digit of the norm.
constexpr int kAtenPartialSums = 8;

template <int kPartialSums>
double sum_of_squares(const float* values, int64_t count) {
  float sums[kPartialSums] = {};
  int64_t i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    for (int lane = 0; lane < kPartialSums; ++lane)
      sums[lane] += values[i + lane] * values[i + lane];
  }
  double total = 0;
  for (; i < count; ++i) total += double{values[i]} * values[i];
  for (const float sum : sums) total += sum;
  return total;
}

// A rank that holds a part of a parameter keeps as many fewer partial sums, so that each of them
// adds up about as many values as it would on one rank.
double sum_of_squares(const at::Tensor& part, int num_ranks) {
  if (!part.is_cpu()) {
    const double norm = at::linalg_vector_norm(part, 2).item<double>();
    return norm * norm;
  }
  const float* values = part.const_data_ptr<float>();
  switch (std::lround(static_cast<double>(kAtenPartialSums) / num_ranks)) {
    case 8:
      return sum_of_squares<8>(values, part.numel());
    case 4:
      return sum_of_squares<4>(values, part.numel());
    case 3:
      return sum_of_squares<3>(values, part.numel());
    case 2:
      return sum_of_squares<2>(values, part.numel());
    default:
      return sum_of_squares<1>(values, part.numel());
  }
}

}  // namespace

double gradient_norm(const std::vector<ShardedUnit*>& units, Collectives& group) {
  double mine = 0;
  for (const ShardedUnit* unit : units) {
    if (!unit->gradient().defined()) continue;
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(group.rank())) {
      mine +=
          sum_of_squares(unit->gradient().narrow(0, slice.shard_begin, slice.numel), group.size());
    }
  }
  at::Tensor sum = at::full({1}, mine, units.front()->shard().options().dtype(at::kDouble));
  group.all_reduce_sum(sum);
  return std::sqrt(sum.item<double>());
}

double clip_scale(double norm, double max_norm) {
  if (max_norm == 0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tessera
