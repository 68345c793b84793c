#include "worker/agent/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>

namespace tessera::agent {
namespace {

constexpr int kMaxEvents = 64;

void add(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

}  // namespace

EventLoop::EventLoop()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_.valid() || !wakeup_.valid()) {
    throw std::system_error(errno, std::generic_category(), "epoll");
  }
  add(epoll_.get(), wakeup_.get());
}

void EventLoop::watch(int fd, Task on_readable) {
  add(epoll_.get(), fd);
  watches_[fd] = std::move(on_readable);
}

void EventLoop::unwatch(int fd) {
  if (watches_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::call_after(std::chrono::milliseconds delay, Task task) {
  const TimerId timer{Clock::now() + delay, next_timer_++};
  timers_.emplace(timer, std::move(task));
  return timer;
}

void EventLoop::post(Task task) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the loop is woken anyway.
  [[maybe_unused]] const ssize_t written = ::write(wakeup_.get(), &one, sizeof(one));
}

void EventLoop::run() {
  epoll_event events[kMaxEvents];
  while (!stopped_) {
    const int count = ::epoll_wait(epoll_.get(), events, kMaxEvents, wait_ms());
    if (count < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "epoll_wait");
    }
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == wakeup_.get()) {
        uint64_t counter;
        [[maybe_unused]] const ssize_t got = ::read(wakeup_.get(), &counter, sizeof(counter));
        continue;
      }
      const auto found = watches_.find(events[i].data.fd);
      if (found == watches_.end()) continue;
      const Task task = found->second;  // A copy: the task may unwatch itself.
      task();
    }
    run_posted();
    run_timers();
  }
}

int EventLoop::wait_ms() const {
  if (timers_.empty()) return -1;
  const auto wait =
      std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(wait.count(), 0, INT_MAX));
}

void EventLoop::run_posted() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (const Task& task : tasks) task();
}

void EventLoop::run_timers() {
  const Clock::time_point now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

}  // namespace tessera::agent
