// How allocations are given back.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/launchers/launcher.h"
#include "server/launchers/launches.h"

namespace tessera::server {
namespace {

// Agents that were told to leave end by themselves; then the cluster ends them.
constexpr absl::Duration kLeaveGrace = absl::Seconds(15);

}  // namespace

void Launches::drop_evicted() {
  for (const int64_t number : gangs_.take_evicted()) {
    const auto record = jobs_.all().find(number);
    if (record != jobs_.all().end()) evicted_.insert(record->second->allocation().name());
  }
  for (const std::string& name : std::set(evicted_)) {
    JobRecord* record = record_of(name);
    if (record != nullptr && record->has_gang()) continue;
    evicted_.erase(name);
    if (record == nullptr) continue;
    drop(*record, absl::StrCat(record->allocation().launcher(), " takes its machines away"));
  }
}

void Launches::drop(JobRecord& record, const std::string& why) {
  const Allocation allocation = record.allocation();
  record.clear_allocation();
  jobs_.touch(record);
  watched_.erase(allocation.name());
  leave(allocation, why);
  if (const auto cluster = clusters_.find(allocation.launcher()); cluster != clusters_.end()) {
    cluster->second.next_question = clock_.uptime();
  }
}

void Launches::leave(const Allocation& allocation, const std::string& why) {
  for (int index = 0; index < allocation.num_nodes(); ++index) {
    const std::string node = node_of_allocation(allocation.name(), index);
    v1::SessionResponse message;
    message.mutable_leave()->set_reason(why);
    if (nodes_.send(node, std::move(message))) {
      leaving_[allocation.name()] = clock_.uptime() + kLeaveGrace;
    } else {
      nodes_.forget(node);
    }
  }
}

}  // namespace tessera::server
