// What clients were told and what machines ran: the other side of the books, kept outside of the
// coordinator, against which every answer of it is held.
//
// Thread safe. A breach of a promise is noted and never thrown: a run goes on to find more.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/v1/agent.pb.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::chaos {

// What was known of a job at some time: later answers cannot fall behind it.
struct Known {
  int64_t revision = 0;
  v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
};

struct JobEntry {
  std::string request_id;
  Known known;
  // Somebody asked for its end.
  bool is_cancelled = false;
  // Nodes on which an attempt began, and those on which it runs.
  std::map<int, std::set<std::string>> begun, running;
  // Ranks of each attempt that took all their steps, and attempts of which all did.
  std::map<int, int> num_finished;
  std::set<int> complete;
};

class Journal {
 public:
  explicit Journal(size_t max_violations = 50) : max_violations_(max_violations) {}

  // A submit was answered. Breaches: the request id made another job before, the job is another
  // request's.
  void acknowledged(const std::string& request_id, const v1::Job& job);
  void asked_to_cancel(const std::string& id);

  // Before a question, and with its answer: it cannot tell of less than was known before.
  Known known(const std::string& id) const;
  void answered(const Known& before, const v1::Job& job);
  // An event of a watch.
  void saw(const std::string& id, const v1::Event& event);

  // Of the machines. Breaches: an attempt begins twice on a node, while another one runs, or after
  // one that went to its end.
  void started(const v1::RunId& run, const std::string& node);
  void ended(const v1::RunId& run, const std::string& node, int num_finished, int world_size);

  void violate(const std::string& sentence);

  // An id at random, half of the time of a job that nobody saw end; nullopt: there is none yet.
  std::optional<std::string> pick(std::mt19937_64& random) const;
  size_t num_jobs() const;
  // Jobs that nobody saw end.
  size_t num_unfinished() const;
  std::vector<std::string> unfinished() const;
  std::map<std::string, JobEntry> jobs() const;
  std::vector<std::string> violations() const;

 private:
  void learn(const std::string& id, int64_t revision, v1::Job::State state);
  void violate_locked(const std::string& sentence);

  const size_t max_violations_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::string, JobEntry> jobs_;           // by id
  std::map<std::string, std::string> by_request_;  // ids
  std::vector<std::string> ids_;
  std::set<std::string> unfinished_;
  std::vector<std::string> violations_;
};

}  // namespace tessera::chaos
