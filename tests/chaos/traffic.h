// What users do all at once while the coordinator dies again and again: they submit, ask twice,
// look, cancel, suspend and resume, and watch jobs in pieces. All of it goes through the client
// library, whose retries are part of the promise, but for watches, which are held to the letter.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "tests/chaos/journal.h"

namespace tessera::chaos {

struct TrafficOptions {
  // Of one coordinator, or of several with commas between, of which one leads.
  std::string address;
  uint64_t seed = 1;
  int num_submitters = 16;
  int num_watchers = 6;
  // Jobs that are waited for at most before more are submitted.
  size_t max_unfinished = 500;
};

// Sums over all threads.
struct TrafficCounts {
  std::atomic<int64_t> num_submits{0};
  // ... with an id that had been used.
  std::atomic<int64_t> num_repeats{0};
  std::atomic<int64_t> num_changes{0};
  std::atomic<int64_t> num_looks{0};
  std::atomic<int64_t> num_watched_jobs{0};
  std::atomic<int64_t> num_watched_events{0};
  // Watches broken off by the watcher, and by the coordinator's death.
  std::atomic<int64_t> num_resumes{0};
  std::atomic<int64_t> num_broken{0};
};

class Traffic {
 public:
  Traffic(TrafficOptions options, Journal& journal);
  // Ends as if finish() was called.
  ~Traffic();

  // No more jobs and changes; returns once every call that was begun is answered. Requires, as
  // finish(): the coordinator serves, and stays.
  void finish_submits();
  // Watchers follow their job to its end, and take no other.
  void finish();
  const TrafficCounts& counts() const { return counts_; }

 private:
  void submit_for_ever(std::stop_token stop, uint64_t seed);
  void submit(Client& client, std::mt19937_64& random);
  void change(Client& client, std::mt19937_64& random);
  void look(Client& client, const std::string& id);
  // A call that answers with the job, which is held against what was known before.
  void ask(const char* what, const std::string& id,
           const std::function<absl::StatusOr<v1::Job>()>& call);
  // Learns of the ends of jobs.
  void poll_for_ever(std::stop_token stop);
  void watch_for_ever(std::stop_token stop, uint64_t seed);
  // The coordinators, and which of them a watcher asks: the next one where a watch was broken.
  struct Turns {
    std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs;
    size_t current = 0;
  };
  void watch(Turns& turns, const std::string& id, std::mt19937_64& random);
  // One call; true once the job's last event has come. Appends revisions.
  bool watch_piece(Turns& turns, const std::string& id, size_t max_events,
                   std::vector<int64_t>& revisions);

  const TrafficOptions options_;
  Journal& journal_;
  TrafficCounts counts_;
  std::atomic<uint64_t> next_request_{0};
  std::vector<std::jthread> submitters_, watchers_;
  std::jthread poller_;
};

}  // namespace tessera::chaos
