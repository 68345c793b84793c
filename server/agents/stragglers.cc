#include "server/agents/stragglers.h"

#include <algorithm>
#include <utility>

#include "server/jobs/rank_times.h"

namespace tessera::server {
namespace {

constexpr double kLeastSeconds = 1e-3;

}  // namespace

std::optional<v1::Straggler> StragglerRule::observe(const v1::StepMetrics& step) {
  const int size = step.rank_times_size();
  if (size < 2) return std::nullopt;
  if (slow_.size() != static_cast<size_t>(size)) {
    slow_.assign(static_cast<size_t>(size), {});
    known_ = -1;
  }
  const double median = rank_busy(step).median;
  const double bound = std::max(median * (1 + kStragglerShare), median + kLeastSeconds);
  for (int rank = 0; rank < size; ++rank) {
    Slow& events = slow_[static_cast<size_t>(rank)];
    events = events << 1;
    events[0] = step.rank_times(rank).busy_seconds() > bound;
  }
  const auto slow_events = [&](int rank) {
    return static_cast<int>(slow_[static_cast<size_t>(rank)].count());
  };
  const auto tell = [&](int rank, bool is_over) {
    v1::Straggler straggler;
    straggler.set_rank(rank);
    straggler.set_step(step.step());
    straggler.set_busy_seconds(step.rank_times(rank).busy_seconds());
    straggler.set_median_busy_seconds(median);
    straggler.set_is_over(is_over);
    return straggler;
  };
  if (known_ >= 0) {
    if (slow_events(known_) > kCalmEvents) return std::nullopt;
    return tell(std::exchange(known_, -1), true);
  }
  int worst = -1;
  for (int rank = 0; rank < size; ++rank) {
    if (slow_events(rank) < kSlowEvents) continue;
    const auto busy = [&](int of) { return step.rank_times(of).busy_seconds(); };
    if (worst < 0 || busy(rank) > busy(worst)) worst = rank;
  }
  if (worst < 0) return std::nullopt;
  known_ = worst;
  return tell(worst, false);
}

}  // namespace tessera::server
