// Rollouts as lines of a file, which data.rollouts reads (docs/data.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker/data/rollouts.h"

namespace tessera {

// For people; readers do without.
struct RolloutTexts {
  std::string prompt, completion;
};

// With a line break at its end; `texts` may be null. Its group, where it has one, is JSON. Numbers
// are written so that the same float is read.
std::string rollout_line(const Rollout& rollout, const std::vector<std::string>& reward_names,
                         const RolloutTexts* texts = nullptr);

// Reads lines that rollout_line() wrote, of these rewards. Throws std::invalid_argument: they are
// others.
std::vector<Rollout> parse_rollout_lines(std::string_view lines,
                                         const std::vector<std::string>& reward_names);

}  // namespace tessera
