#include "server/scheduler/inventory.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace tessera::server {
namespace {

// The first of `count` devices: of the shortest run of neighbours that holds them, else the lowest.
std::set<int>::const_iterator first_of(const std::set<int>& free, int count) {
  auto best = free.begin();
  int best_length = std::numeric_limits<int>::max();
  for (auto begin = free.begin(); begin != free.end();) {
    auto end = begin;
    int length = 0;
    do {
      ++end;
      ++length;
    } while (end != free.end() && *end == *std::prev(end) + 1);
    if (length >= count && length < best_length) {
      best = begin;
      best_length = length;
    }
    begin = end;
  }
  return best;
}

}  // namespace

struct Inventory::Gathering {
  const Demand& demand;
  int wanted;  // that are still to be found
  std::vector<Spot> spots;
  std::set<const Shelf*> used;

  void use(const Shelf& shelf, int count) {
    used.insert(&shelf);
    wanted -= count;
    auto device = first_of(shelf.free, count);
    for (int i = 0; i < count; ++i, ++device) spots.push_back({std::string(shelf.node), *device});
  }
  // Forgets what an attempt that failed has found.
  void restart(int count) {
    wanted = count;
    spots.clear();
    used.clear();
  }
};

int Inventory::class_of(const DeviceView& device) {
  const bool shared = device.kind == "cpu";
  const std::string model = absl::AsciiStrToLower(device.model);
  const int64_t memory = shared ? 0 : device.memory_bytes;
  for (size_t i = 0; i < classes_.size(); ++i) {
    const Class& known = *classes_[i];
    if (known.kind == device.kind && known.model == model && known.memory_bytes == memory) {
      return static_cast<int>(i);
    }
  }
  auto added = std::make_unique<Class>();
  added->kind = device.kind;
  added->model = model;
  added->memory_bytes = memory;
  added->shared = shared;
  classes_.push_back(std::move(added));
  return static_cast<int>(classes_.size()) - 1;
}

void Inventory::put(const NodeView& view) {
  remove(view.name);
  ++version_;
  auto node = std::make_unique<Node>();
  node->view = view;
  std::map<int, Shelf*> by_class;
  for (const DeviceView& device : node->view.devices) {
    const int model_class = class_of(device);
    Shelf*& shelf = by_class[model_class];
    if (shelf == nullptr) {
      shelf = node->shelves.emplace_back(std::make_unique<Shelf>()).get();
      shelf->node = node->view.name;
      shelf->rack = node->view.rack;
      shelf->model_class = model_class;
    }
    shelf->free.insert(device.index);
    ++shelf->total;
    if (classes_[model_class]->shared) shelf->memory_bytes += device.memory_bytes;
    node->by_device[device.index] = shelf;
  }
  for (const auto& shelf : node->shelves) {
    shelf->free_bytes = shelf->memory_bytes;
    classes_[shelf->model_class]->total += shelf->total;
    link(*shelf, true);
  }
  nodes_[view.name] = std::move(node);
}

void Inventory::remove(const std::string& name) {
  const auto node = nodes_.find(name);
  if (node == nodes_.end()) return;
  ++version_;
  for (const auto& shelf : node->second->shelves) {
    link(*shelf, false);
    classes_[shelf->model_class]->total -= shelf->total;
  }
  nodes_.erase(node);
}

// The index holds a shelf by its number of free devices: taken out before that changes.
void Inventory::link(Shelf& shelf, bool in) {
  Class& model_class = *classes_[shelf.model_class];
  const int count = static_cast<int>(shelf.free.size());
  auto rack = model_class.racks.find(shelf.rack);
  if (rack == model_class.racks.end()) rack = model_class.racks.emplace(shelf.rack, Rack{}).first;
  model_class.racks_by_free.erase({rack->second.num_free, rack->first});
  const auto place = [&](Shelves& shelves) {
    if (in) {
      shelves[count][shelf.node] = &shelf;
    } else {
      const auto bucket = shelves.find(count);
      bucket->second.erase(shelf.node);
      if (bucket->second.empty()) shelves.erase(bucket);
    }
  };
  place(model_class.shelves);
  place(rack->second.shelves);
  model_class.num_free += in ? count : -count;
  rack->second.num_free += in ? count : -count;
  if (rack->second.shelves.empty()) {
    model_class.racks.erase(rack);
  } else {
    model_class.racks_by_free.insert({rack->second.num_free, rack->first});
  }
}

void Inventory::take(const std::vector<Spot>& spots, int64_t bytes_per_rank) {
  change(spots, bytes_per_rank, true);
}

void Inventory::give(const std::vector<Spot>& spots, int64_t bytes_per_rank) {
  change(spots, bytes_per_rank, false);
}

void Inventory::change(const std::vector<Spot>& spots, int64_t bytes_per_rank, bool take) {
  Shelf* shelf = nullptr;
  for (const Spot& spot : spots) {
    const auto node = nodes_.find(spot.node);
    if (node == nodes_.end()) continue;
    const auto found = node->second->by_device.find(spot.device);
    if (found == node->second->by_device.end()) continue;
    // Spots of one node follow each other: the shelf moves once for all of them.
    if (shelf != found->second) {
      if (shelf != nullptr) link(*shelf, true);
      shelf = found->second;
      link(*shelf, false);
    }
    if (take) {
      shelf->free.erase(spot.device);
      shelf->free_bytes -= bytes_per_rank;
    } else {
      shelf->free.insert(spot.device);
      shelf->free_bytes += bytes_per_rank;
    }
  }
  if (shelf != nullptr) link(*shelf, true);
}

bool Inventory::is_free(const Spot& spot) const {
  const auto node = nodes_.find(spot.node);
  if (node == nodes_.end()) return false;
  const auto shelf = node->second->by_device.find(spot.device);
  return shelf != node->second->by_device.end() && shelf->second->free.contains(spot.device);
}

bool Inventory::is_of(const Class& model_class, const Demand& demand) {
  return model_class.kind == demand.kind && absl::StrContains(model_class.model, demand.model);
}

bool Inventory::suits(const Spot& spot, const Demand& demand) const {
  const auto node = nodes_.find(spot.node);
  if (node == nodes_.end()) return false;
  const auto shelf = node->second->by_device.find(spot.device);
  if (shelf == node->second->by_device.end()) return false;
  const Class& model_class = *classes_[shelf->second->model_class];
  if (!is_of(model_class, demand)) return false;
  const int64_t memory =
      model_class.shared ? shelf->second->memory_bytes : model_class.memory_bytes;
  return memory == 0 || demand.bytes_per_rank <= memory;
}

std::vector<const Inventory::Class*> Inventory::classes_for(const Demand& demand) const {
  std::vector<const Class*> found;
  for (const auto& model_class : classes_) {
    if (model_class->total == 0 || !is_of(*model_class, demand)) continue;
    const int64_t memory = model_class->memory_bytes;
    if (memory > 0 && demand.bytes_per_rank > memory) continue;
    found.push_back(model_class.get());
  }
  std::sort(found.begin(), found.end(), [](const Class* a, const Class* b) {
    return std::tie(a->memory_bytes, a->model) < std::tie(b->memory_bytes, b->model);
  });
  return found;
}

int Inventory::holds(const Shelf& shelf, const Demand& demand) {
  const auto devices = static_cast<int64_t>(shelf.free.size());
  if (shelf.memory_bytes == 0 || demand.bytes_per_rank == 0) return static_cast<int>(devices);
  return static_cast<int>(
      std::clamp<int64_t>(shelf.free_bytes / demand.bytes_per_rank, 0, devices));
}

std::optional<std::vector<Spot>> Inventory::place(const Demand& demand, int count) const {
  const std::vector<const Class*> classes = classes_for(demand);
  int64_t free = 0;
  for (const Class* model_class : classes) free += model_class->num_free;
  if (free < count) return std::nullopt;
  Gathering gathering{demand, count, {}, {}};
  using Way = bool (Inventory::*)(const Class&, Gathering&) const;
  for (const Way way :
       {&Inventory::on_one_node, &Inventory::in_one_rack, &Inventory::in_all_racks}) {
    for (const Class* model_class : classes) {
      gathering.restart(count);
      if (model_class->num_free >= count && (this->*way)(*model_class, gathering)) {
        return std::move(gathering.spots);
      }
    }
  }
  gathering.restart(count);
  for (const Class* model_class : classes) {
    if (in_all_racks(*model_class, gathering)) return std::move(gathering.spots);
  }
  return std::nullopt;
}

bool Inventory::on_one_node(const Class& from, Gathering& gathering) const {
  for (auto bucket = from.shelves.lower_bound(gathering.wanted); bucket != from.shelves.end();
       ++bucket) {
    for (const auto& [name, shelf] : bucket->second) {
      if (holds(*shelf, gathering.demand) < gathering.wanted) continue;
      gathering.use(*shelf, gathering.wanted);
      return true;
    }
  }
  return false;
}

bool Inventory::in_one_rack(const Class& from, Gathering& gathering) const {
  const int count = gathering.wanted;
  for (auto rack = from.racks_by_free.lower_bound({count, ""}); rack != from.racks_by_free.end();
       ++rack) {
    gathering.restart(count);
    if (gather(from.racks.find(rack->second)->second.shelves, gathering)) return true;
  }
  return false;
}

// Whole racks, those with most free devices first, and the tightest that holds the rest.
bool Inventory::in_all_racks(const Class& from, Gathering& gathering) const {
  std::set<std::string_view> used;
  for (auto rack = from.racks_by_free.rbegin(); rack != from.racks_by_free.rend(); ++rack) {
    for (auto tight = from.racks_by_free.lower_bound({gathering.wanted, ""});
         tight != from.racks_by_free.end(); ++tight) {
      if (used.contains(tight->second)) continue;
      used.insert(tight->second);
      if (gather(from.racks.find(tight->second)->second.shelves, gathering)) return true;
    }
    if (!used.insert(rack->second).second) continue;
    if (gather(from.racks.find(rack->second)->second.shelves, gathering)) return true;
  }
  return gathering.wanted == 0;
}

bool Inventory::gather(const Shelves& shelves, Gathering& gathering) {
  for (auto bucket = shelves.rbegin(); bucket != shelves.rend() && bucket->first > 0; ++bucket) {
    for (const auto& [name, largest] : bucket->second) {
      for (auto tight = shelves.lower_bound(gathering.wanted); tight != shelves.end(); ++tight) {
        for (const auto& [other, shelf] : tight->second) {
          if (gathering.used.contains(shelf)) continue;
          if (holds(*shelf, gathering.demand) < gathering.wanted) continue;
          gathering.use(*shelf, gathering.wanted);
          return true;
        }
      }
      if (gathering.used.contains(largest)) continue;
      const int count = std::min(gathering.wanted, holds(*largest, gathering.demand));
      if (count > 0) gathering.use(*largest, count);
      if (gathering.wanted == 0) return true;
    }
  }
  return false;
}

int64_t Inventory::room(const Demand& demand) const {
  int64_t room = 0;
  for (const Class* model_class : classes_for(demand)) {
    if (!model_class->shared || demand.bytes_per_rank == 0) {
      room += model_class->num_free;
      continue;
    }
    for (const auto& [count, shelves] : model_class->shelves) {
      for (const auto& [name, shelf] : shelves) room += holds(*shelf, demand);
    }
  }
  return room;
}

int64_t Inventory::capacity(const Demand& demand) const {
  int64_t capacity = 0;
  for (const Class* model_class : classes_for(demand)) {
    if (!model_class->shared || demand.bytes_per_rank == 0) {
      capacity += model_class->total;
      continue;
    }
    for (const auto& [count, shelves] : model_class->shelves) {
      for (const auto& [name, shelf] : shelves) {
        const int64_t bytes = shelf->memory_bytes;
        capacity += bytes == 0 ? shelf->total
                               : std::min<int64_t>(shelf->total, bytes / demand.bytes_per_rank);
      }
    }
  }
  return capacity;
}

int64_t Inventory::num_free(const Demand& demand) const {
  int64_t count = 0;
  for (const auto& model_class : classes_) {
    if (is_of(*model_class, demand)) count += model_class->num_free;
  }
  return count;
}

int64_t Inventory::num_devices(const Demand& demand) const {
  int64_t count = 0;
  for (const auto& model_class : classes_) {
    if (is_of(*model_class, demand)) count += model_class->total;
  }
  return count;
}

int64_t Inventory::num_free(const std::string& kind) const { return num_free(Demand{kind, "", 0}); }

}  // namespace tessera::server
