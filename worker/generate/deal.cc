#include "worker/generate/deal.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace tessera {

std::vector<std::vector<DealtSamples>> deal_samples(std::span<const int64_t> prompt_lengths,
                                                    int64_t samples, int num_ranks) {
  std::vector<int64_t> by_length(prompt_lengths.size());
  std::iota(by_length.begin(), by_length.end(), int64_t{0});
  std::ranges::stable_sort(by_length, std::greater(),
                           [&](int64_t request) { return prompt_lengths[request]; });
  std::vector<std::vector<DealtSamples>> dealt(static_cast<size_t>(num_ranks));
  const int64_t rounds = std::ssize(by_length) / num_ranks;
  for (int64_t i = 0; i < rounds * num_ranks; ++i) {
    // To and fro, so that no rank always has the longer ones.
    const int64_t round = i / num_ranks, place = i % num_ranks;
    const int64_t rank = round % 2 == 0 ? place : num_ranks - 1 - place;
    dealt[rank].push_back({by_length[i], 0, samples});
  }
  const int64_t first_cut = rounds * num_ranks;
  const int64_t left = (std::ssize(by_length) - first_cut) * samples;
  for (int rank = 0; rank < num_ranks; ++rank) {
    int64_t at = left * rank / num_ranks;
    const int64_t end = left * (rank + 1) / num_ranks;
    while (at < end) {
      const int64_t first = at % samples, count = std::min(samples - first, end - at);
      dealt[rank].push_back({by_length[first_cut + at / samples], first, count});
      at += count;
    }
  }
  return dealt;
}

std::vector<SampleMove> even_out(std::span<const RankLoad> loads) {
  const auto num_ranks = std::ssize(loads);
  int64_t all = 0;
  for (const RankLoad& load : loads) all += load.unfinished;
  const int64_t share = (all + num_ranks - 1) / num_ranks;
  std::vector<int64_t> room;
  for (const RankLoad& load : loads)
    room.push_back(std::clamp<int64_t>(share - load.unfinished, 0, load.room));
  std::vector<SampleMove> moves;
  for (int from = 0; from < num_ranks; ++from) {
    const RankLoad& load = loads[from];
    if (load.unfinished < kLeastDivided) continue;
    int64_t given = std::clamp<int64_t>(load.unfinished - share, 0, load.movable);
    for (int to = 0; to < num_ranks && given > 0; ++to) {
      const int64_t count = std::min(given, room[to]);
      if (count == 0) continue;
      moves.push_back({from, to, count});
      given -= count;
      room[to] -= count;
    }
  }
  return moves;
}

}  // namespace tessera
