// Who makes which completions, where several ranks make them together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// Samples [first, first + count) of a request.
struct DealtSamples {
  int64_t request = 0, first = 0, count = 0;
  bool operator==(const DealtSamples&) const = default;
};

// Of requests for `samples` completions each of prompts of these lengths: what each rank makes, as
// many completions as the others but for one. Those of a prompt stay together, so that they share
// it, but for the requests that are too few for each rank to have one more; these are cut. Long
// prompts are spread. The same on every rank.
std::vector<std::vector<DealtSamples>> deal_samples(std::span<const int64_t> prompt_lengths,
                                                    int64_t samples, int num_ranks);

}  // namespace tessera
