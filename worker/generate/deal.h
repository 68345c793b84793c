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

// What a rank still has to do.
struct RankLoad {
  int64_t unfinished = 0;  // samples
  int64_t movable = 0;     // of them, those that another rank may go on with
  int64_t room = 0;        // samples of others that it could take
};

struct SampleMove {
  int from = 0, to = 0;
  int64_t count = 0;
  bool operator==(const SampleMove&) const = default;
};

// Fewer sequences than this are not worth dividing: a pass of them takes as long as one of half as
// many, the time to read the weights.
inline constexpr int64_t kLeastDivided = 16;

// Who hands samples to whom, so that all have about as many: what ranks are left with differs, as
// nobody knows beforehand how long completions become. By rank that gives, then by rank that takes.
std::vector<SampleMove> even_out(std::span<const RankLoad> loads);

}  // namespace tessera
