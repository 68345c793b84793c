#include "worker/trainer/step_timer.h"

#include <algorithm>
#include <utility>

#include "worker/parallel/watched_work.h"

namespace tessera {
namespace {

double seconds(StepTimer::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

class WaitScope {
 public:
  explicit WaitScope(StepTimer& timer)
      : timer_(timer), begin_(StepTimer::Clock::now()), trace_("communication wait") {}
  ~WaitScope() { timer_.add_wait(StepTimer::Clock::now() - begin_); }

 private:
  StepTimer& timer_;
  StepTimer::Clock::time_point begin_;
  TraceScope trace_;
};

class TimedWork : public Work {
 public:
  TimedWork(std::unique_ptr<Work> inner, StepTimer& timer)
      : inner_(std::move(inner)), timer_(timer) {}
  void wait() override {
    const WaitScope scope(timer_);
    inner_->wait();
  }

 private:
  std::unique_ptr<Work> inner_;
  StepTimer& timer_;
};

class TimedCollectives : public Collectives, public WorkWatcher {
 public:
  TimedCollectives(Collectives& inner, StepTimer& timer) : inner_(inner), timer_(timer) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    return timed([&] { return inner_.all_gather(output, input); });
  }
  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    return timed([&] { return inner_.reduce_scatter_add(output, input); });
  }
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    return timed([&] { return inner_.all_to_all(output, input); });
  }
  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    return timed([&] { return inner_.shift(output, input, distance, most); });
  }
  std::unique_ptr<Work> watch(const char* kind, int64_t bytes,
                              std::unique_ptr<Work> work) override {
    return std::make_unique<TimedWork>(watched(inner_, kind, bytes, std::move(work)), timer_);
  }
  void all_reduce_sum(at::Tensor values) override {
    const WaitScope scope(timer_);
    inner_.all_reduce_sum(values);
  }
  void barrier() override {
    const WaitScope scope(timer_);
    inner_.barrier();
  }

 private:
  template <typename Start>
  std::unique_ptr<Work> timed(const Start& start) {
    const TraceScope trace("communication start");
    return std::make_unique<TimedWork>(start(), timer_);
  }

  Collectives& inner_;
  StepTimer& timer_;
};

}  // namespace

void StepTimer::begin_step() {
  for (Clock::duration& spent : spent_) spent = {};
  wait_ = phase_wait_ = judging_ = {};
  step_begin_ = phase_begin_ = period_begin_ = Clock::now();
  in_step_ = true;
  open_phase(Phase::kData);
}

void StepTimer::close_phase(Clock::time_point now) {
  spent_[static_cast<int>(phase_)] += now - phase_begin_ - phase_wait_;
  phase_wait_ = {};
  phase_begin_ = now;
  trace_.reset();
  memory_.reset();
}

void StepTimer::open_phase(Phase phase) {
  phase_ = phase;
  memory_.emplace(phase);
  trace_.emplace(phase_name(phase).data());
}

void StepTimer::enter(Phase phase) {
  close_phase(Clock::now());
  open_phase(phase);
}

v1::StepTime StepTimer::end_step() {
  const Clock::time_point now = Clock::now();
  close_phase(now);
  period_ += now - period_begin_;
  in_step_ = false;
  v1::StepTime time;
  time.set_data_seconds(seconds(spent_[static_cast<int>(Phase::kData)]));
  const Clock::duration generating = spent_[static_cast<int>(Phase::kGenerate)];
  time.set_generation_seconds(seconds(std::max(Clock::duration{}, generating - judging_)));
  time.set_reward_seconds(seconds(judging_));
  time.set_forward_seconds(seconds(spent_[static_cast<int>(Phase::kForward)]));
  time.set_backward_seconds(seconds(spent_[static_cast<int>(Phase::kBackward)]));
  time.set_optimizer_seconds(seconds(spent_[static_cast<int>(Phase::kOptimizer)]));
  time.set_communication_wait_seconds(seconds(wait_));
  time.set_total_seconds(seconds(now - step_begin_));
  return time;
}

v1::RankTime StepTimer::take_rank_time() {
  const Clock::time_point now = Clock::now();
  if (in_step_) period_ += now - period_begin_;
  period_begin_ = now;
  const Clock::duration wait = std::exchange(period_wait_, {});
  const Clock::duration all = std::exchange(period_, {});
  v1::RankTime time;
  time.set_busy_seconds(seconds(std::max(Clock::duration{}, all - wait)));
  time.set_wait_seconds(seconds(wait));
  return time;
}

std::unique_ptr<Collectives> make_timed_collectives(Collectives& inner, StepTimer& timer) {
  return std::make_unique<TimedCollectives>(inner, timer);
}

}  // namespace tessera
