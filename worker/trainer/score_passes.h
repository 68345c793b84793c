// Who scores which texts, where several ranks score them together, a part at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// The texts of each pass of a rank.
using ScorePasses = std::vector<std::vector<int64_t>>;

// By rank, of texts of these lengths in tokens, about as many tokens on each. A pass has at most
// `most_tokens`, unless one text alone has more. All ranks have as many passes, of which some may
// be of nothing. Texts without a token are in none. The same on every rank.
std::vector<ScorePasses> deal_scores(std::span<const int64_t> lengths, int num_ranks,
                                     int64_t most_tokens);

}  // namespace tessera
