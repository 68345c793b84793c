#include "server/agents/nodes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/bytes.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxNodes = 16'384;
constexpr int kMaxDevicesPerNode = 1024;
constexpr size_t kMaxNameLength = 253;
constexpr absl::Duration kForgetAfter = absl::Minutes(10);

absl::Status check_hello(const v1::Hello& hello) {
  std::vector<spec::Violation> violations;
  if (hello.node().empty() || hello.node().size() > kMaxNameLength) {
    violations.push_back({"hello.node", absl::StrCat("hello.node must have 1 to ", kMaxNameLength,
                                                     " characters, has ", hello.node().size())});
  }
  if (hello.rack().size() > kMaxNameLength) {
    violations.push_back(
        {"hello.rack", absl::StrCat("hello.rack must have at most ", kMaxNameLength,
                                    " characters, has ", hello.rack().size())});
  }
  std::set<int> indexes;
  for (const v1::Device& device : hello.devices()) {
    if (!indexes.insert(device.index()).second) {
      violations.push_back(
          {"hello.devices", absl::StrCat("hello.devices has index ", device.index(), " twice")});
    }
  }
  if (hello.devices_size() > kMaxDevicesPerNode) {
    violations.push_back(
        {"hello.devices", absl::StrCat("hello.devices has ", hello.devices_size(),
                                       " entries, the most is ", kMaxDevicesPerNode)});
  }
  return violations.empty() ? absl::OkStatus() : invalid_request(violations);
}

NodeView view_of(const v1::Hello& info) {
  NodeView view{info.node(), info.rack(), {}};
  for (const v1::Device& device : info.devices()) {
    const int64_t bytes = device.memory_bytes();
    view.devices.push_back({device.index(), device.kind(), device.model(),
                            device.kind() == "cuda" ? spec::tensor_bytes_of_gpu(bytes) : bytes});
  }
  return view;
}

}  // namespace

Nodes::Nodes(const Clock& clock, LeaseOptions options, AfterCommit after_commit)
    : clock_(clock), options_(options), after_commit_(std::move(after_commit)) {}

void Nodes::expect(const std::string& name) {
  Node& node = nodes_[name];
  node.info.set_node(name);
  node.last_message = clock_.uptime();
  node.last_seen = clock_.wall();
  node.lost = true;
}

absl::Status Nodes::open(const std::shared_ptr<AgentLink>& link, const v1::Hello& hello) {
  if (absl::Status status = check_hello(hello); !status.ok()) return status;
  if (!nodes_.contains(hello.node()) && nodes_.size() >= kMaxNodes) {
    return error(absl::StatusCode::kResourceExhausted, "TOO_MANY_NODES",
                 absl::StrCat("the coordinator has its most of ", kMaxNodes, " nodes"));
  }
  Node& node = nodes_[hello.node()];
  end(hello.node(), error(absl::StatusCode::kAborted, "SUPERSEDED",
                          absl::StrCat("node ", hello.node(), " opened a newer session")));
  node = Node{hello, link, clock_.uptime(), clock_.wall()};
  names_[link.get()] = hello.node();
  changed_.insert(hello.node());
  return absl::OkStatus();
}

void Nodes::end(const std::string& name, const absl::Status& status) {
  Node& node = nodes_.at(name);
  if (node.link == nullptr) return;
  changed_.insert(name);
  names_.erase(node.link.get());
  after_commit_([link = std::move(node.link), status] { link->end(status); });
  node.link = nullptr;
}

void Nodes::end_all(const absl::Status& status) {
  for (const auto& [name, node] : nodes_) end(name, status);
}

std::string Nodes::close(const std::shared_ptr<AgentLink>& link) {
  const auto found = names_.find(link.get());
  if (found == names_.end()) return "";
  const std::string name = found->second;
  nodes_.at(name).link = nullptr;
  changed_.insert(name);
  names_.erase(found);
  return name;
}

void Nodes::forget(const std::string& name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end() || found->second.link != nullptr) return;
  nodes_.erase(found);
  changed_.insert(name);
}

std::string Nodes::heard(const std::shared_ptr<AgentLink>& link) {
  const auto found = names_.find(link.get());
  if (found == names_.end()) return "";
  Node& node = nodes_.at(found->second);
  node.last_message = clock_.uptime();
  node.last_seen = clock_.wall();
  if (node.lost) changed_.insert(found->second);
  node.lost = node.given_up = false;
  return found->second;
}

bool Nodes::send(const std::string& name, v1::SessionResponse message) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end() || found->second.link == nullptr) return false;
  after_commit_([link = found->second.link, message = std::move(message)]() mutable {
    link->send(std::move(message));
  });
  return true;
}

Nodes::Expired Nodes::expire() {
  Expired expired;
  const absl::Duration give_up_after = options_.fence + options_.lease;
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    Node& node = it->second;
    const absl::Duration silence = clock_.uptime() - node.last_message;
    if (silence > options_.lease && !node.lost) {
      node.lost = true;
      changed_.insert(it->first);
      expired.lost.push_back(it->first);
    }
    if (silence > give_up_after && !node.given_up) {
      node.given_up = true;
      expired.given_up.push_back(it->first);
      // A Hello must come before anything else from it: its runs are not wanted any more.
      end(it->first, error(absl::StatusCode::kUnavailable, "LEASE_EXPIRED",
                           "the node was silent for longer than its fence period"));
    }
    const bool forget = node.link == nullptr && silence > give_up_after + kForgetAfter;
    it = forget ? nodes_.erase(it) : std::next(it);
  }
  return expired;
}

bool Nodes::any_ready() const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [](const auto& entry) { return takes_work(entry.second); });
}

std::optional<NodeView> Nodes::ready(const std::string& name) const {
  const auto node = nodes_.find(name);
  if (node == nodes_.end() || !takes_work(node->second)) return std::nullopt;
  return view_of(node->second.info);
}

}  // namespace tessera::server
