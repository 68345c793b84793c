// Questions about jobs that an agent answers, by a program that it runs on its machine: only there
// the model, the data and the output directory can be seen.
//
// Belongs to the control loop's thread.
#pragma once

#include <map>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/agents/nodes.h"

namespace tessera::server {

class Probes {
 public:
  // UNAVAILABLE: no agent is connected, it went away, has too much to do, or took too long.
  // INVALID_ARGUMENT: what was asked about cannot be so, by the program's finding. INTERNAL: the
  // program broke. Else an answer of the question's kind.
  using Done = absl::AnyInvocable<void(absl::StatusOr<v1::Probed>)>;
  // Gets the parts of an answer that comes in parts, before `done`.
  using Part = absl::AnyInvocable<void(const v1::GeneratedPart&)>;

  Probes(Nodes& nodes, const Clock& clock) : nodes_(nodes), clock_(clock) {}

  // Asks a node, preferably one that has devices of the kind, and of those the one that has the
  // fewest questions to answer. Calls `done` once: at once where no
  // agent is connected, else when the agent answers, goes, or takes longer than `timeout`, of which
  // the agent itself is given a little less. Returns the question's number; 0: no agent is
  // connected.
  int64_t start(v1::Probe probe, const std::string& device_kind, absl::Duration timeout, Done done,
                Part part = nullptr);
  // Nobody waits for the answer any more: `done` is not called. Nothing where it was.
  void cancel(int64_t id);
  size_t num_pending() const { return pending_.size(); }

  void probed(const std::string& node, const v1::Probed& message);
  // The node's session ended.
  void abandon(const std::string& node);
  // No answer is waited for any more.
  void abandon_all(const std::string& why);
  void tick();

 private:
  struct Pending {
    std::string node;
    absl::Duration timeout;
    absl::Duration deadline;
    Done done;
    Part part;
  };
  using Iterator = std::map<int64_t, Pending>::iterator;

  // "": no node takes work.
  std::string choose(const std::string& device_kind) const;
  void finish(Iterator probe, absl::StatusOr<v1::Probed> answer);
  void erase(Iterator probe);

  Nodes& nodes_;
  const Clock& clock_;
  int64_t last_id_ = 0;
  std::map<int64_t, Pending> pending_;
  std::map<std::string, int> num_asked_;  // of pending_, by node
};

}  // namespace tessera::server
