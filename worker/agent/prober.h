// Runs programs that answer a question about a job (`tessera-trainer --check`, `--plan`,
// tessera-data), a few at a time.
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

class Prober {
 public:
  // Probes that run at once, and that wait; more are refused with a failure that says so.
  static constexpr size_t kMaxRunning = 4;
  static constexpr size_t kMaxWaiting = 64;

  struct Options {
    std::filesystem::path trainer;
    std::filesystem::path data_program;
    std::vector<std::string> environment;
    // Working space; its contents are deleted.
    std::filesystem::path directory;
    std::chrono::milliseconds deadline = std::chrono::seconds(60);
    // Of a profile, which may read much.
    std::chrono::milliseconds profile_deadline = std::chrono::minutes(10);
  };
  using Done = std::function<void(v1::Probed)>;

  Prober(EventLoop& loop, Options options);
  ~Prober();
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  // `done` is called later, once, unless cancel_all() or the destructor comes first.
  void probe(v1::Probe probe, Done done);
  void cancel_all();

 private:
  struct Job {
    v1::Probe probe;
    Done done;
    std::filesystem::path directory;
    std::unique_ptr<Process> process;
    EventLoop::TimerId deadline;
    bool timed_out = false;
  };

  std::chrono::milliseconds deadline_of(const v1::Probe& probe) const;
  void start_waiting();
  absl::Status start(Job& job);
  void exited(std::list<Job>::iterator job);
  // Answers later, with a failure.
  void refuse(const v1::Probe& probe, Done done, const std::string& why);
  void discard(Job& job);

  EventLoop& loop_;
  const Options options_;
  std::deque<Job> waiting_;
  std::list<Job> running_;
  int64_t num_started_ = 0;
};

}  // namespace tessera::agent
