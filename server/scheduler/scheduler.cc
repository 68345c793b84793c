#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

// Free devices of one kind on one node, by index.
struct Room {
  NodeView* node;
  std::vector<DeviceView*> free;
};

std::vector<Room> rooms_of(std::vector<NodeView>& nodes, const std::string& kind) {
  std::vector<Room> rooms;
  for (NodeView& node : nodes) {
    Room room{&node, {}};
    for (DeviceView& device : node.devices) {
      if (device.free && device.kind == kind) room.free.push_back(&device);
    }
    std::sort(room.free.begin(), room.free.end(),
              [](auto* a, auto* b) { return a->index < b->index; });
    if (!room.free.empty()) rooms.push_back(std::move(room));
  }
  return rooms;
}

// First device of the shortest run of neighbouring free devices that holds `count`; 0 where none
// does.
size_t first_neighbour(const std::vector<DeviceView*>& free, size_t count) {
  size_t best = 0;
  size_t best_length = free.size() + 1;
  for (size_t begin = 0, end = 0; begin < free.size(); begin = end) {
    end = begin + 1;
    while (end < free.size() && free[end]->index == free[end - 1]->index + 1) ++end;
    if (end - begin < count || end - begin >= best_length) continue;
    best = begin;
    best_length = end - begin;
  }
  return best;
}

// Takes `count` devices. Requires: the rooms hold them.
std::vector<v1::Placement> place(std::vector<Room> rooms, size_t count) {
  std::vector<v1::Placement> placements;
  while (placements.size() < count) {
    const size_t wanted = count - placements.size();
    // The tightest room that holds the rest; else the largest.
    const auto rank = [&](const Room& room) {
      const bool holds = room.free.size() >= wanted;
      const auto size = static_cast<int64_t>(room.free.size());
      return std::tuple(!holds, holds ? size : -size);
    };
    const auto chosen = std::min_element(rooms.begin(), rooms.end(), [&](auto& a, auto& b) {
      return std::tuple(rank(a), a.node->name) < std::tuple(rank(b), b.node->name);
    });
    const size_t taken = std::min(wanted, chosen->free.size());
    const size_t first = first_neighbour(chosen->free, taken);
    for (size_t i = first; i < first + taken; ++i) {
      chosen->free[i]->free = false;
      v1::Placement& placement = placements.emplace_back();
      placement.set_rank(static_cast<int>(placements.size()) - 1);
      placement.set_node(chosen->node->name);
      placement.set_device_index(chosen->free[i]->index);
    }
    rooms.erase(chosen);
  }
  return placements;
}

int count_devices(const std::vector<NodeView>& nodes, const std::string& kind, bool only_free) {
  int count = 0;
  for (const NodeView& node : nodes) {
    for (const DeviceView& device : node.devices) {
      if (device.kind == kind && (device.free || !only_free)) ++count;
    }
  }
  return count;
}

}  // namespace

std::vector<Decision> schedule(std::vector<NodeView> nodes, std::vector<QueuedJob> queue,
                               absl::Duration now) {
  std::sort(queue.begin(), queue.end(), [](const QueuedJob& a, const QueuedJob& b) {
    return std::tuple(-a.priority, a.number) < std::tuple(-b.priority, b.number);
  });
  std::vector<Decision> decisions;
  std::map<std::string, std::string> blocked_by;  // kind -> the job that waits first
  for (const QueuedJob& job : queue) {
    Decision& decision = decisions.emplace_back(Decision{job.id, {}, ""});
    const int total = count_devices(nodes, job.kind, false);
    const int free = count_devices(nodes, job.kind, true);
    const std::string need =
        absl::StrCat("needs ", job.num_devices, " ", job.kind, " device",
                     job.num_devices == 1 ? "" : "s", ", ", free, " free of ", total);
    const auto blocker = blocked_by.find(job.kind);
    if (now < job.not_before) {
      decision.reason = "waits a while after a failed attempt";
    } else if (job.num_devices > total) {
      decision.reason = absl::StrCat(need, "; the connected nodes could never hold it");
    } else if (blocker != blocked_by.end()) {
      decision.reason = absl::StrCat(need, ", after job ", blocker->second);
    } else if (job.num_devices > free) {
      decision.reason = need;
      blocked_by[job.kind] = job.id;
    } else {
      decision.placements = place(rooms_of(nodes, job.kind), job.num_devices);
    }
  }
  return decisions;
}

}  // namespace tessera::server
