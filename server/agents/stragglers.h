// Which rank keeps the others waiting, by the ranks' times of each logged step.
#pragma once

#include <optional>
#include <vector>

#include "tessera/v1/telemetry.pb.h"

namespace tessera::server {

// A rank is slow in a step where it was busy for longer than the rank in the middle (the lower one
// of two) by more than kStragglerShare of that, and by a millisecond.
inline constexpr double kStragglerShare = 0.2;
// It is a straggler once it was so in this many step events in a row, and until it was not in as
// many.
inline constexpr int kStragglerEvents = 8;

// Of one attempt.
class StragglerRule {
 public:
  // What the event changes: a straggler, or the end of one. Without its node. An event of another
  // number of ranks begins anew.
  std::optional<v1::Straggler> observe(const v1::StepMetrics& step);

 private:
  std::vector<int> slow_;  // by rank: events in a row in which it was slow
  int known_ = -1;
  int calm_ = 0;  // events in a row in which that rank was not slow
};

}  // namespace tessera::server
