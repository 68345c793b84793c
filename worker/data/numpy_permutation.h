// The permutations of numpy's global generator, in which trainers in Python deal out rows.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace tessera {

// numpy.random.seed(seed), then numpy.random.permutation(count), call for call.
class NumpyPermutations {
 public:
  explicit NumpyPermutations(uint32_t seed) : random_(seed) {}

  std::vector<int32_t> next(int32_t count);

 private:
  uint32_t below_or_at(uint32_t most);

  std::mt19937 random_;
};

}  // namespace tessera
