#include "server/agents/checks.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

bool has_device(const NodeView& node, const std::string& kind) {
  for (const DeviceView& device : node.devices) {
    if (device.kind == kind) return true;
  }
  return false;
}

}  // namespace

Checks::Checks(Nodes& nodes, const Clock& clock, absl::Duration timeout)
    : nodes_(nodes), clock_(clock), timeout_(timeout) {}

void Checks::start(const v1::JobSpec& spec, Done done) {
  // Preferably a machine of the kind the job will run on.
  std::string chosen;
  for (const NodeView& node : nodes_.ready()) {
    const bool fits = has_device(node, spec.resources().device());
    if (chosen.empty() || fits) chosen = node.name;
    if (fits) break;
  }
  if (chosen.empty()) {
    done({{}, "accepted unchecked: no agent is connected"});
    return;
  }
  v1::SessionResponse message;
  message.mutable_check()->set_check_id(++last_id_);
  *message.mutable_check()->mutable_spec() = spec;
  pending_.emplace(last_id_, Pending{chosen, clock_.uptime() + timeout_, std::move(done)});
  nodes_.send(chosen, std::move(message));
}

void Checks::finish(std::map<int64_t, Pending>::iterator check, Outcome outcome) {
  Done done = std::move(check->second.done);
  pending_.erase(check);
  done(std::move(outcome));
}

void Checks::checked(const std::string& node, const v1::Checked& message) {
  const auto check = pending_.find(message.check_id());
  if (check == pending_.end() || check->second.node != node) return;
  const auto& violations = message.result().violations();
  finish(check, {{violations.begin(), violations.end()}, absl::StrCat("checked by node ", node)});
}

void Checks::abandon(const std::string& node) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto check = it++;
    if (check->second.node != node) continue;
    finish(check, {{}, absl::StrCat("accepted unchecked: node ", node, " went away")});
  }
}

void Checks::abandon_all(const std::string& why) {
  while (!pending_.empty()) {
    finish(pending_.begin(), {{}, absl::StrCat("accepted unchecked: ", why)});
  }
}

void Checks::tick() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto check = it++;
    if (clock_.uptime() < check->second.deadline) continue;
    const std::string node = check->second.node;
    finish(check, {{},
                   absl::StrCat("accepted unchecked: node ", node, " did not answer within ",
                                absl::FormatDuration(timeout_))});
  }
}

}  // namespace tessera::server
