// Runs programs that answer a question about a job (`tessera-trainer --check`, `--plan`,
// `--generate`, tessera-data), a few at a time.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/v1/agent.pb.h"
#include "worker/agent/confinement.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/process.h"
#include "worker/agent/reply_tail.h"

namespace tessera::agent {

class Prober {
 public:
  // Probes that run at once, and that wait; more are left unanswered with a sentence that says so.
  static constexpr size_t kMaxRunning = 4;
  static constexpr size_t kMaxWaiting = 64;
  // Of a probe that sets none.
  static constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::seconds(60);

  struct Options {
    std::filesystem::path trainer;
    std::filesystem::path data_program;
    std::vector<std::string> environment;
    // Working space; its contents are deleted.
    std::filesystem::path directory;
    // Null: programs may read and write what their user may.
    std::shared_ptr<const Confinement> confinement;
  };
  using Done = std::function<void(v1::Probed)>;

  Prober(EventLoop& loop, Options options);
  ~Prober();
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  // `done` is called later, once, unless cancel(), cancel_all() or the destructor comes first; for
  // a probe that is answered in parts with each of them, and once more where it failed.
  void probe(v1::Probe probe, Done done);
  // That with this probe_id; nothing where there is none.
  void cancel(int64_t probe_id);
  void cancel_all();

 private:
  struct Job {
    v1::Probe probe;
    Done done;
    std::filesystem::path directory;
    std::unique_ptr<Process> process;  // null: it waits
    EventLoop::TimerId deadline;
    bool timed_out = false;
    // Of a probe that is answered in parts.
    std::optional<ReplyTail> replies;
    EventLoop::TimerId next_part;
  };
  using Iterator = std::list<Job>::iterator;

  void start_waiting();
  absl::Status start(Job& job);
  void watch_replies(Iterator job);
  bool send_part(Job& job);
  void exited(Iterator job);
  void expired(Iterator job);
  void answer_later(Done done, v1::Probed answer);
  void discard(Job& job);

  EventLoop& loop_;
  const Options options_;
  std::list<Job> waiting_;
  std::list<Job> running_;
  int64_t num_started_ = 0;
};

}  // namespace tessera::agent
