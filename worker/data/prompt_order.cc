#include "worker/data/prompt_order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <numeric>

#include "worker/memory/ledger.h"

namespace tessera {

std::vector<int64_t> PromptOrder::of_epoch(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (cached_epoch_ != epoch) {
    cached_ = permutation(epoch);
    cached_epoch_ = epoch;
  }
  return cached_;
}

std::vector<int64_t> PromptOrder::permutation(int64_t epoch) const {
  std::vector<int64_t> order(static_cast<size_t>(options_.num_prompts));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!options_.shuffle) return order;
  const OwnerScope owner(Owner::kData);
  const auto seed = static_cast<uint64_t>(options_.seed + (options_.continues ? 0 : epoch));
  const auto generator = at::detail::createCPUGenerator(seed);
  for (int64_t i = options_.continues ? 0 : epoch; i <= epoch; ++i) {
    const at::Tensor drawn =
        at::randperm(options_.num_prompts, generator, at::TensorOptions().dtype(at::kLong));
    if (i == epoch) std::copy_n(drawn.const_data_ptr<int64_t>(), order.size(), order.begin());
  }
  return order;
}

}  // namespace tessera
