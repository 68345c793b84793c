#include "worker/optim/adamw_state.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "worker/memory/host_memory.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// bitsandbytes' min_8bit_size.
constexpr int64_t kMinQuantized = 4096;

bool stays_wide(const FlatEntry& entry) { return entry.numel < kMinQuantized; }

static_assert(FlatLayout::kAlignment % kAdamWBlock == 0);

at::ScalarType dtype_of(AdamWStateType type) {
  if (type == AdamWStateType::kInt8) return at::kByte;
  return type == AdamWStateType::kBfloat16 ? at::kBFloat16 : at::kFloat;
}

// Names the random draws of a unit in a step. Not std::hash, which may be another elsewhere.
uint32_t draw_of(const std::string& unit, int64_t step) {
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : unit) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  hash ^= static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15U;
  return static_cast<uint32_t>((hash * 0xd6e8feb86659fd93U) >> 32);
}

AdamWStep step_of(const AdamWState::Update& u, bool decays) {
  const double correction1 = 1 - std::pow(u.beta1, static_cast<double>(u.step));
  const double correction2 = 1 - std::pow(u.beta2, static_cast<double>(u.step));
  const double decay = decays ? u.weight_decay : 0.0;
  return {.gradient_scale = static_cast<float>(u.gradient_scale),
          .decay = static_cast<float>(1 - u.learning_rate * decay),
          .keep1 = static_cast<float>(1 - u.beta1),
          .keep2 = static_cast<float>(1 - u.beta2),
          .step_size = static_cast<float>(u.learning_rate / correction1),
          .root_correction = static_cast<float>(std::sqrt(correction2)),
          .epsilon = static_cast<float>(u.epsilon)};
}

}  // namespace

int64_t num_small_elements(const FlatLayout& layout, int rank) {
  int64_t elements = 0;
  for (const FlatLayout::Slice& slice : layout.slices_of_rank(rank)) {
    if (stays_wide(*slice.entry)) elements += slice.numel;
  }
  return elements;
}

AdamWState::AdamWState(const ShardedUnit& unit, int rank, const Options& options)
    : options_(options),
      name_(unit.layout().name),
      used_numel_(unit.layout().used_numel),
      first_(rank * unit.layout().shard_numel) {
  list_segments(unit, rank);
  const at::Device device = unit.options().device;
  const auto make = [&](int64_t numel, at::ScalarType dtype) {
    if (options_.offload) return empty_host({numel}, dtype, device).zero_();
    return at::zeros({numel}, at::TensorOptions(device).dtype(dtype));
  };
  const auto make_means = [&](int64_t numel, at::ScalarType dtype) {
    return AdamWMeans{make(numel, dtype), make(numel, dtype)};
  };
  const OwnerScope scope(Owner::kOptimizer);
  means_ = make_means(unit.layout().shard_numel, dtype_of(options_.type));
  if (options_.type != AdamWStateType::kInt8) return;
  scales_ = make_means(unit.layout().shard_numel / kAdamWBlock, at::kFloat);
  small_ = make_means(num_small_elements(unit.layout(), rank), at::kFloat);
}

void AdamWState::list_segments(const ShardedUnit& unit, int rank) {
  const FlatLayout& layout = unit.layout();
  int64_t small = 0;
  for (const FlatLayout::Slice& slice : layout.slices_of_rank(rank)) {
    const bool is_small = options_.type == AdamWStateType::kInt8 && stays_wide(*slice.entry);
    segments_.push_back({slice.shard_begin, slice.numel,
                         unit.decays(slice.entry - layout.entries.data()), is_small ? small : -1});
    if (is_small) small += slice.numel;
  }
  for (const FlatEntry& entry : layout.entries) {
    if (!stays_wide(entry)) continue;
    small_numel_ += entry.numel;
    small_first_ += std::clamp(first_ - entry.offset, int64_t{0}, entry.numel);
  }
}

void AdamWState::update(const at::Tensor& weights, const at::Tensor& gradients,
                        const Update& update) {
  const uint32_t draw = draw_of(name_, update.step) + static_cast<uint32_t>(first_);
  const AdamWStep decaying = step_of(update, true), plain = step_of(update, false);
  for (const Segment& segment : segments_) {
    update_segment(segment, weights.narrow(0, segment.begin, segment.numel),
                   gradients.narrow(0, segment.begin, segment.numel),
                   segment.decays ? decaying : plain, draw + static_cast<uint32_t>(segment.begin));
  }
}

void AdamWState::update_segment(const Segment& segment, const at::Tensor& weights,
                                const at::Tensor& gradients, const AdamWStep& step, uint32_t draw) {
  const bool on_host = options_.offload;
  if (segment.small_begin >= 0) {
    const AdamWMeans small = small_.narrow(segment.small_begin, segment.numel);
    return adamw_(weights, small, gradients, step, on_host);
  }
  const AdamWMeans means = means_.narrow(segment.begin, segment.numel);
  switch (options_.type) {
    case AdamWStateType::kFloat32:
      return adamw_(weights, means, gradients, step, on_host);
    case AdamWStateType::kBfloat16:
      return adamw_bfloat_(weights, means, gradients, step, draw, on_host);
    case AdamWStateType::kInt8: {
      const int64_t blocks = at::ceil_div(segment.numel, kAdamWBlock);
      const AdamWMeans scales = scales_.narrow(segment.begin / kAdamWBlock, blocks);
      return adamw_int8_(weights, {means, scales}, gradients, step, on_host);
    }
  }
}

std::vector<FlatShard> AdamWState::vectors() const {
  std::vector<FlatShard> shards;
  const auto add = [&](const std::string& kind, const AdamWMeans& means, int64_t numel,
                       std::optional<int64_t> begin) {
    shards.push_back({name_ + "/exp_avg" + kind, means.exp_avg, numel, begin});
    shards.push_back({name_ + "/exp_avg_sq" + kind, means.exp_avg_sq, numel, begin});
  };
  add("", means_, used_numel_, {});
  if (options_.type != AdamWStateType::kInt8) return shards;
  add(".scales", scales_, at::ceil_div(used_numel_, kAdamWBlock), {});
  if (small_numel_ > 0) add(".small", small_, small_numel_, small_first_);
  return shards;
}

}  // namespace tessera
