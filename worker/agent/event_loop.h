// The agent's one thread of control: file descriptors, timers, and work posted by other threads.
//
// Thread safety: post() may be called from any thread; all else only from the thread in run(), or
// before it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/agent/file_util.h"

namespace tessera::agent {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;
  using TimerId = std::pair<Clock::time_point, uint64_t>;

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `on_readable` for as long as `fd` is readable; it may be called once too often, so it
  // must not block. The caller unwatches before it closes fd.
  void watch(int fd, Task on_readable);
  void unwatch(int fd);

  TimerId call_after(std::chrono::milliseconds delay, Task task);
  // Does nothing when the timer has fired.
  void cancel(const TimerId& timer) { timers_.erase(timer); }

  void post(Task task);

  // Runs until stop().
  void run();
  void stop() { stopped_ = true; }

 private:
  int wait_ms() const;
  void run_posted();
  void run_timers();

  UniqueFd epoll_;
  UniqueFd wakeup_;
  bool stopped_ = false;
  std::map<int, Task> watches_;
  std::map<TimerId, Task> timers_;
  uint64_t next_timer_ = 0;

  std::mutex mutex_;
  std::vector<Task> posted_;  // guarded by mutex_
};

}  // namespace tessera::agent
