// Which document comes next when several sources are mixed by weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// When a mixture ends.
enum class StoppingStrategy {
  kFirstExhausted,  // with the last document of the source that runs out first
  kAllExhausted,    // when every source was gone through; those that run out before begin again
};

struct MixtureSource {
  int64_t num_documents = 0;
  double weight = 1;
};

inline constexpr size_t kMaxMixtureDocuments = size_t{1} << 30;

// The order of datasets.interleave_datasets(probabilities = weights over their sum, seed), bit for
// bit: documents of all sources, counted through, as they follow each other. Requires at least one
// source, and documents and a weight above 0 in each. Throws std::length_error where the order
// would have more than kMaxMixtureDocuments.
std::vector<uint32_t> interleave(std::span<const MixtureSource> sources, StoppingStrategy stopping,
                                 uint64_t seed);

// numpy.random.default_rng(seed).random(), number for number.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);
  double next();  // in [0, 1)

 private:
  __extension__ typedef unsigned __int128 State;

  State state_ = 0;
  State increment_ = 0;
};

}  // namespace tessera
