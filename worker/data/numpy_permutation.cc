#include "worker/data/numpy_permutation.h"

#include <bit>
#include <numeric>
#include <utility>

namespace tessera {

// As random_interval() of numpy/random: values beyond are drawn again.
uint32_t NumpyPermutations::below_or_at(uint32_t most) {
  const uint32_t mask = std::bit_ceil(most + 1) - 1;
  uint32_t value = static_cast<uint32_t>(random_()) & mask;
  while (value > most) value = static_cast<uint32_t>(random_()) & mask;
  return value;
}

std::vector<int32_t> NumpyPermutations::next(int32_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t i = static_cast<uint32_t>(count); i-- > 1;)
    std::swap(order[i], order[below_or_at(i)]);
  return order;
}

}  // namespace tessera
