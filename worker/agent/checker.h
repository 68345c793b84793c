// Runs `tessera-trainer --check` on specs, a few at a time.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tessera/v1/agent.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/process.h"

namespace tessera::agent {

class Checker {
 public:
  // Checks that run at once, and that wait; more are refused with a violation that says so.
  static constexpr size_t kMaxRunning = 4;
  static constexpr size_t kMaxWaiting = 64;

  struct Options {
    std::filesystem::path trainer;
    std::vector<std::string> environment;
    // Working space; its contents are deleted.
    std::filesystem::path directory;
    std::chrono::milliseconds deadline = std::chrono::seconds(60);
  };
  using Done = std::function<void(v1::Checked)>;

  Checker(EventLoop& loop, Options options);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // `done` is called later, once, unless cancel_all() or the destructor comes first.
  void check(v1::Check check, Done done);
  void cancel_all();

 private:
  struct Job {
    v1::Check check;
    Done done;
    std::filesystem::path directory;
    std::unique_ptr<Process> process;
    EventLoop::TimerId deadline;
    bool timed_out = false;
  };

  void start_waiting();
  absl::Status start(Job& job);
  void exited(std::list<Job>::iterator job);
  void discard(Job& job);

  EventLoop& loop_;
  const Options options_;
  std::deque<Job> waiting_;
  std::list<Job> running_;
  int64_t num_started_ = 0;
};

}  // namespace tessera::agent
