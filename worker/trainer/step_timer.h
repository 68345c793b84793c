// Where the time of a step goes.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "tessera/v1/telemetry.pb.h"
#include "worker/kernels/trace_scope.h"
#include "worker/memory/attribution.h"
#include "worker/parallel/collectives.h"

namespace tessera {

// Used by one thread.
class StepTimer {
 public:
  using Clock = std::chrono::steady_clock;

  void begin_step();
  // Time and allocations of this thread from now on count for `phase`.
  void enter(Phase phase);
  // Time spent waiting for other ranks, taken out of the phase it fell in.
  void add_wait(Clock::duration wait) {
    wait_ += wait;
    phase_wait_ += wait;
    if (in_step_) period_wait_ += wait;
  }
  // Time of Phase::kGenerate that went into judging.
  void add_judging(Clock::duration judging) { judging_ += judging; }
  v1::StepTime end_step();
  // What went into steps since the last call: to be called once in each.
  v1::RankTime take_rank_time();

 private:
  void open_phase(Phase phase);
  void close_phase(Clock::time_point now);

  Clock::time_point step_begin_{}, phase_begin_{};
  Phase phase_ = Phase::kData;
  Clock::duration spent_[kNumPhases]{};
  Clock::duration wait_{}, phase_wait_{};
  Clock::duration judging_{};
  // Since take_rank_time(), but for the step's part from period_begin_ on.
  Clock::duration period_{}, period_wait_{};
  Clock::time_point period_begin_{};
  bool in_step_ = false;
  std::optional<TraceScope> trace_;  // of the phase, like the next
  std::optional<PhaseScope> memory_;
};

// The same collectives, with the time in blocking calls reported to `timer`. Both must outlive it.
std::unique_ptr<Collectives> make_timed_collectives(Collectives& inner, StepTimer& timer);

}  // namespace tessera
