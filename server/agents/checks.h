// Checks of a spec on an agent's machine, before the job is accepted: only there the model, the
// data and the output directory can be seen.
//
// Belongs to the control loop's thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/agents/nodes.h"

namespace tessera::server {

class Checks {
 public:
  struct Outcome {
    // Empty where no agent answered: then nothing is known against the spec.
    std::vector<v1::Failure> violations;
    // One sentence on who checked, or why nobody did.
    std::string note;
  };
  using Done = absl::AnyInvocable<void(Outcome)>;

  Checks(Nodes& nodes, const Clock& clock, absl::Duration timeout);

  // Calls `done` once: at once where no agent is connected, or where the nodes could never hold the
  // job, else when the agent answers, goes, or takes too long.
  void start(const v1::JobSpec& spec, Done done);
  size_t num_pending() const { return pending_.size(); }

  void checked(const std::string& node, const v1::Checked& message);
  // The node's session ended.
  void abandon(const std::string& node);
  // No answer is waited for any more.
  void abandon_all(const std::string& why);
  void tick();

 private:
  struct Pending {
    std::string node;
    absl::Duration deadline;
    Done done;
  };
  // Why the job would wait for ever, where that is known.
  std::optional<v1::Failure> misfit(const v1::JobSpec& spec) const;
  void finish(std::map<int64_t, Pending>::iterator check, Outcome outcome);

  Nodes& nodes_;
  const Clock& clock_;
  const absl::Duration timeout_;
  int64_t last_id_ = 0;
  std::map<int64_t, Pending> pending_;
};

}  // namespace tessera::server
