#include "server/jobs/control_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <utility>

namespace tessera::server {
namespace {

// Tasks of one transaction: bounds how long the first of them waits for its commit.
constexpr size_t kMaxTasksPerRound = 1024;

}  // namespace

void ControlLoop::start(absl::Duration period, std::function<void()> tick,
                        std::function<void()> commit, OnFailure on_failure) {
  thread_ = std::thread([this, period, tick = std::move(tick), commit = std::move(commit),
                         on_failure = std::move(on_failure)] {
    try {
      run(period, tick, commit, on_failure);
    } catch (const std::exception& failure) {
      spdlog::critical("the control loop cannot go on: {}", failure.what());
      std::_Exit(EXIT_FAILURE);
    }
  });
}

void ControlLoop::post(Task task) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  wake_.notify_one();
}

void ControlLoop::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void ControlLoop::run(absl::Duration period, const std::function<void()>& tick,
                      const std::function<void()>& commit, const OnFailure& on_failure) {
  const auto attempt = [&](auto&& action) {
    try {
      action();
    } catch (const std::exception& failure) {
      effects_.clear();
      if (!on_failure(failure)) throw;
    }
  };
  const auto step = absl::ToChronoNanoseconds(period);
  auto next_tick = std::chrono::steady_clock::now();
  bool stopping = false;
  while (!stopping) {
    std::vector<Task> round;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_until(lock, next_tick, [&] { return stopping_ || !tasks_.empty(); });
      const size_t count = std::min(tasks_.size(), kMaxTasksPerRound);
      std::move(tasks_.begin(), tasks_.begin() + count, std::back_inserter(round));
      tasks_.erase(tasks_.begin(), tasks_.begin() + count);
      stopping = stopping_ && tasks_.empty();
    }
    for (Task& task : round) attempt(task);
    if (std::chrono::steady_clock::now() >= next_tick) {
      attempt(tick);
      next_tick = std::chrono::steady_clock::now() + step;
    }
    attempt(commit);
    for (Task& effect : std::exchange(effects_, {})) effect();
  }
}

}  // namespace tessera::server
