#include "worker/trainer/score_passes.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tessera {
namespace {

// The passes of one rank, as texts come to it, the longest first.
struct Dealt {
  ScorePasses passes;
  std::vector<int64_t> tokens;  // of each
  int64_t all_tokens = 0;

  // To the first pass that has room.
  void add(int64_t text, int64_t length, int64_t most_tokens) {
    size_t pass = 0;
    while (pass < passes.size() && tokens[pass] + length > most_tokens) ++pass;
    if (pass == passes.size()) {
      passes.emplace_back();
      tokens.push_back(0);
    }
    passes[pass].push_back(text);
    tokens[pass] += length;
    all_tokens += length;
  }
};

}  // namespace

std::vector<ScorePasses> deal_scores(std::span<const int64_t> lengths, int num_ranks,
                                     int64_t most_tokens) {
  std::vector<int64_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), int64_t{0});
  std::ranges::stable_sort(by_length, std::greater(), [&](int64_t text) { return lengths[text]; });
  std::vector<Dealt> ranks(static_cast<size_t>(num_ranks));
  for (const int64_t text : by_length) {
    if (lengths[text] == 0) break;
    std::ranges::min_element(ranks, {}, &Dealt::all_tokens)->add(text, lengths[text], most_tokens);
  }
  size_t num_passes = 0;
  for (const Dealt& rank : ranks) num_passes = std::max(num_passes, rank.passes.size());
  std::vector<ScorePasses> dealt;
  for (Dealt& rank : ranks) {
    rank.passes.resize(num_passes);
    dealt.push_back(std::move(rank.passes));
  }
  return dealt;
}

}  // namespace tessera
