// Which rank keeps the others waiting, by the ranks' times of each logged step.
#pragma once

#include <bitset>
#include <optional>
#include <vector>

#include "tessera/v1/telemetry.pb.h"

namespace tessera::server {

// A rank is slow in a step where it was busy for longer than the rank in the middle (the lower one
// of two) by more than kStragglerShare of that, and by a millisecond.
inline constexpr double kStragglerShare = 0.2;
// It is a straggler once it was slow in kSlowEvents of the last kStragglerEvents step events, and
// until it was in no more than kCalmEvents of them: what holds a rank up now and then, as a
// neighbour that takes its core, need not hold up every step.
inline constexpr int kStragglerEvents = 8;
inline constexpr int kSlowEvents = 6;
inline constexpr int kCalmEvents = 2;

// Of one attempt.
class StragglerRule {
 public:
  // What the event changes: a straggler, or the end of one. Without its node. An event of another
  // number of ranks begins anew.
  std::optional<v1::Straggler> observe(const v1::StepMetrics& step);

 private:
  using Slow = std::bitset<kStragglerEvents>;  // in which of the last events; the newest is bit 0

  std::vector<Slow> slow_;  // by rank
  int known_ = -1;
};

}  // namespace tessera::server
