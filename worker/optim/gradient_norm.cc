#include "worker/optim/gradient_norm.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "worker/kernels/stand_in.h"
#include "worker/kernels/trace_scope.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// ATen's float32 norm on a CPU keeps this many running sums. Gradients are so uneven that what the
// sums round away shows in the fifth digit of the norm. How much that is depends on how large a sum
// has grown, so a rank that holds a later part of a parameter begins with what the parts before it
// add up to, and counts what it adds to that.
constexpr int kAtenSums = 8;

double accurate_sum_of_squares(const float* values, int64_t count) {
  std::array<double, kAtenSums> sums{};
  int64_t i = 0;
  for (; i + kAtenSums <= count; i += kAtenSums) {
    for (int lane = 0; lane < kAtenSums; ++lane)
      sums[lane] += double{values[i + lane]} * values[i + lane];
  }
  double total = 0;
  for (; i < count; ++i) total += double{values[i]} * values[i];
  for (const double sum : sums) total += sum;
  return total;
}

// What ATen's sums grow by over these values, `before` being the sum of all that come before them.
double aten_sum_of_squares(const float* values, int64_t count, double before) {
  const float begin = static_cast<float>(before / kAtenSums);
  std::array<float, kAtenSums> sums;
  sums.fill(begin);
  int64_t i = 0;
  for (; i + kAtenSums <= count; i += kAtenSums) {
    for (int lane = 0; lane < kAtenSums; ++lane) sums[lane] += values[i + lane] * values[i + lane];
  }
  double total = 0;
  for (; i < count; ++i) total += double{values[i]} * values[i];
  for (const float sum : sums) total += double{sum} - begin;
  return total;
}

// For each parameter that goes on from an earlier rank: the sum of squares of its parts there.
// [number of parameters of all units].
std::vector<double> sums_before(const std::vector<ShardedUnit*>& units, Collectives& group) {
  int64_t num_entries = 0;
  for (const ShardedUnit* unit : units) num_entries += std::ssize(unit->layout().entries);
  std::vector<double> before(num_entries);
  if (group.size() == 1) return before;
  at::Tensor sums =
      at::zeros({group.size(), num_entries},
                at::TensorOptions(units.front()->options().device).dtype(at::kDouble));
  if (sums.is_meta()) {
    group.all_reduce_sum(sums);
    return before;
  }
  double* const mine = sums.mutable_data_ptr<double>() + group.rank() * num_entries;
  int64_t first = 0;
  for (const ShardedUnit* unit : units) {
    const FlatLayout& layout = unit->layout();
    for (const FlatLayout::Slice& slice : layout.slices_of_rank(group.rank())) {
      if (!unit->gradient().defined() || slice.entry_begin + slice.numel == slice.entry->numel)
        continue;
      mine[first + (slice.entry - layout.entries.data())] = accurate_sum_of_squares(
          unit->gradient().const_data_ptr<float>() + slice.shard_begin, slice.numel);
    }
    first += std::ssize(layout.entries);
  }
  group.all_reduce_sum(sums);
  const double* all = sums.const_data_ptr<double>();
  for (int rank = 0; rank < group.rank(); ++rank) {
    for (int64_t i = 0; i < num_entries; ++i) before[i] += all[rank * num_entries + i];
  }
  return before;
}

double cpu_sum_of_squares(const std::vector<ShardedUnit*>& units, Collectives& group) {
  const std::vector<double> before = sums_before(units, group);
  if (units.front()->options().device.is_meta()) return 0;
  double total = 0;
  int64_t first = 0;
  for (const ShardedUnit* unit : units) {
    const FlatLayout& layout = unit->layout();
    for (const FlatLayout::Slice& slice : layout.slices_of_rank(group.rank())) {
      if (!unit->gradient().defined()) continue;
      total += aten_sum_of_squares(
          unit->gradient().const_data_ptr<float>() + slice.shard_begin, slice.numel,
          slice.entry_begin > 0 ? before[first + (slice.entry - layout.entries.data())] : 0);
    }
    first += std::ssize(layout.entries);
  }
  return total;
}

}  // namespace

void GradientNorm::add(const std::vector<ShardedUnit*>& units) {
  const TraceScope trace("gradient norm");
  const c10::AutoGradMode no_grad(false);
  const OwnerScope scope(Owner::kGradients);
  const at::Device device = units.front()->options().device;
  options_ = at::TensorOptions(device).dtype(at::kDouble);
  if (on_cpu(device)) {
    on_cpu_ += cpu_sum_of_squares(units, shards_);
    return;
  }
  if (!on_device_.defined()) on_device_ = at::zeros({1}, options_);
  for (const ShardedUnit* unit : units) {
    if (!unit->gradient().defined()) continue;
    on_device_.add_(at::linalg_vector_norm(unit->gradient(), 2).to(at::kDouble).square_());
  }
}

double GradientNorm::total() const {
  at::Tensor sum = on_device_.defined() ? on_device_.clone() : at::full({1}, on_cpu_, options_);
  // Over copies, too: a number that they must agree on comes to all in one sum.
  world_.all_reduce_sum(sum);
  return std::sqrt(host_value(sum) / num_copies_);
}

double gradient_norm(const std::vector<ShardedUnit*>& units, const Mesh& mesh) {
  GradientNorm norm(mesh);
  norm.add(units);
  return norm.total();
}

double clip_scale(double norm, double max_norm) {
  if (max_norm == 0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tessera
