#include "server/agents/probes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

bool has_device(const Node& node, const std::string& kind) {
  const auto& devices = node.info.devices();
  return std::any_of(devices.begin(), devices.end(),
                     [&](const v1::Device& device) { return device.kind() == kind; });
}

// Of a question's time, what the agent may take: its refusal comes before nobody waits for it.
constexpr double kOfAgent = 5.0 / 6;

absl::Status no_answer(const std::string& why) {
  return error(absl::StatusCode::kUnavailable, "NO_AGENT", why);
}

absl::StatusOr<v1::Probed> judged(const v1::Probed& answer) {
  if (answer.kind_case() == v1::Probed::kUnanswered) return no_answer(answer.unanswered());
  if (!answer.has_failure() && !answer.planned().has_failure()) return answer;
  const v1::Failure& why = answer.has_failure() ? answer.failure() : answer.planned().failure();
  if (why.kind() == v1::Failure::USER) return invalid_request({{why.field(), why.message()}});
  return error(absl::StatusCode::kInternal, "PROBE_FAILED", why.message());
}

}  // namespace

std::string Probes::choose(const std::string& device_kind) const {
  std::string chosen;
  std::pair<bool, int> least;  // lacks the device, questions that wait
  for (const auto& [name, node] : nodes_.all()) {
    if (!takes_work(node)) continue;
    const auto asked = num_asked_.find(name);
    const std::pair burden{!has_device(node, device_kind),
                           asked == num_asked_.end() ? 0 : asked->second};
    if (!chosen.empty() && burden >= least) continue;
    chosen = name;
    least = burden;
    if (burden == std::pair{false, 0}) break;
  }
  return chosen;
}

int64_t Probes::start(v1::Probe probe, const std::string& device_kind, absl::Duration timeout,
                      Done done, Part part) {
  const std::string chosen = choose(device_kind);
  if (chosen.empty()) {
    done(no_answer("no agent is connected"));
    return 0;
  }
  v1::SessionResponse message;
  *message.mutable_probe() = std::move(probe);
  message.mutable_probe()->set_probe_id(++last_id_);
  message.mutable_probe()->set_timeout_ms(absl::ToInt64Milliseconds(timeout * kOfAgent));
  pending_.emplace(last_id_, Pending{chosen, timeout, clock_.uptime() + timeout, std::move(done),
                                     std::move(part)});
  ++num_asked_[chosen];
  nodes_.send(chosen, std::move(message));
  return last_id_;
}

void Probes::cancel(int64_t id) {
  const auto probe = pending_.find(id);
  if (probe == pending_.end()) return;
  v1::SessionResponse message;
  message.mutable_cancel_probe()->set_probe_id(id);
  nodes_.send(probe->second.node, std::move(message));
  erase(probe);
}

void Probes::erase(Iterator probe) {
  const auto asked = num_asked_.find(probe->second.node);
  if (--asked->second == 0) num_asked_.erase(asked);
  pending_.erase(probe);
}

void Probes::finish(Iterator probe, absl::StatusOr<v1::Probed> answer) {
  Done done = std::move(probe->second.done);
  erase(probe);
  done(std::move(answer));
}

void Probes::probed(const std::string& node, const v1::Probed& message) {
  const auto probe = pending_.find(message.probe_id());
  if (probe == pending_.end() || probe->second.node != node) return;
  if (message.has_generated() && probe->second.part) {
    probe->second.part(message.generated());
    if (!message.generated().is_last()) return;
  }
  finish(probe, judged(message));
}

// What is done with an answer may ask another question: the ids that are to end are looked up
// first.
void Probes::abandon(const std::string& node) {
  std::vector<int64_t> ids;
  for (const auto& [id, pending] : pending_) {
    if (pending.node == node) ids.push_back(id);
  }
  for (const int64_t id : ids) {
    finish(pending_.find(id), no_answer(absl::StrCat("node ", node, " went away")));
  }
}

void Probes::abandon_all(const std::string& why) {
  while (!pending_.empty()) finish(pending_.begin(), no_answer(why));
}

void Probes::tick() {
  std::vector<int64_t> ids;
  for (const auto& [id, pending] : pending_) {
    if (clock_.uptime() >= pending.deadline) ids.push_back(id);
  }
  for (const int64_t id : ids) {
    const Iterator probe = pending_.find(id);
    finish(probe, no_answer(absl::StrCat("node ", probe->second.node, " did not answer within ",
                                         absl::FormatDuration(probe->second.timeout))));
  }
}

}  // namespace tessera::server
