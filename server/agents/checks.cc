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

std::optional<v1::Failure> Checks::misfit(const v1::JobSpec& spec) const {
  const std::vector<NodeView> ready = nodes_.ready();
  // A node that is away may hold what the others lack.
  if (ready.empty() || ready.size() < nodes_.all().size()) return std::nullopt;
  const std::string& kind = spec.resources().device();
  const int wanted = spec.parallelism().num_processes();
  int present = 0;
  for (const NodeView& node : ready) {
    for (const DeviceView& device : node.devices) present += device.kind == kind;
  }
  if (wanted <= present) return std::nullopt;
  v1::Failure failure;
  failure.set_kind(v1::Failure::USER);
  failure.set_rank(-1);
  if (present == 0) {
    failure.set_field("resources.device");
    failure.set_message(absl::StrCat("resources.device is \"", kind,
                                     "\", and no connected node has such a device"));
  } else {
    failure.set_field("parallelism.num_processes");
    failure.set_message(absl::StrCat("parallelism.num_processes is ", wanted,
                                     ", must be at most the number of ", kind,
                                     " devices of all nodes, which is ", present));
  }
  return failure;
}

void Checks::start(const v1::JobSpec& spec, Done done) {
  if (const auto failure = misfit(spec)) return done({{*failure}, "it could never start"});
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
