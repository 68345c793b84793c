// The fastest combination of settings that fits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera {

// What a combination comes to.
struct Outcome {
  int64_t bytes = 0;
  double seconds = 0;
};

// Of each knob the index of a setting; -1: as the job has it.
using Combination = std::vector<int>;

struct SearchSpace {
  std::vector<int> num_settings;  // of each knob
  int64_t limit_bytes = 0;        // a combination with at most so many fits
  // Rehearses; absent: the combination is not allowed, or there is no time left.
  std::function<std::optional<Outcome>(const Combination&)> rehearse;
};

// Absent: nothing that was found fits. Of equally fast combinations (within 0.1%) the one with
// fewer changes is taken. `rehearse` may be called with the same combination again.
std::optional<Combination> find_fastest(const SearchSpace& space);

}  // namespace tessera
