// The devices of the present nodes: which are free, and where a gang goes best. Pure, and
// incremental: a device that is taken or given back moves its node within a few sorted sets.
//
// A gang goes, in this order, on one node, on nodes of one rack, on any nodes with devices of one
// model, on any that it may be on. Among nodes that hold the rest of it, on the one with the fewest
// free devices; of the models that it may have, on that with the least memory. On a node it gets
// neighbouring devices where there are some, and ranks that follow each other are neighbours.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/scheduler/views.h"

namespace tessera::server {

class Inventory {
 public:
  // A node with all its devices free. Replaces the node of that name.
  void put(const NodeView& view);
  void remove(const std::string& name);

  // Spots on nodes that are not here are left out. Requires: those taken are free, and those given
  // back were taken with as many bytes.
  void take(const std::vector<Spot>& spots, int64_t bytes_per_rank);
  void give(const std::vector<Spot>& spots, int64_t bytes_per_rank);
  bool is_free(const Spot& spot) const;
  // Whether a rank may be there at some time.
  bool suits(const Spot& spot, const Demand& demand) const;

  // Where to put `count` ranks now; nothing where they cannot be.
  std::optional<std::vector<Spot>> place(const Demand& demand, int count) const;

  // Ranks of the demand that there is room for now, and on empty nodes.
  int64_t room(const Demand& demand) const;
  int64_t capacity(const Demand& demand) const;
  // Devices of the kind and model, whatever their memory.
  int64_t num_free(const Demand& demand) const;
  int64_t num_devices(const Demand& demand) const;
  int64_t num_free(const std::string& kind) const;

  // Grows when nodes come or go.
  int64_t version() const { return version_; }

 private:
  // Devices of one class on one node.
  struct Shelf {
    std::string_view node;
    std::string_view rack;
    int model_class = 0;
    std::set<int> free;
    int total = 0;
    // Of all of them, where they share it.
    int64_t memory_bytes = 0, free_bytes = 0;
  };
  // Shelves by their number of free devices, then by name of node.
  using Shelves = std::map<int, std::map<std::string_view, Shelf*>>;
  struct Rack {
    Shelves shelves;
    int num_free = 0;
  };
  // Devices that are alike.
  struct Class {
    std::string kind, model;
    // Of each device; 0 where they share their node's.
    int64_t memory_bytes = 0;
    bool shared = false;
    int64_t num_free = 0, total = 0;
    Shelves shelves;
    std::map<std::string, Rack, std::less<>> racks;
    std::set<std::pair<int, std::string_view>> racks_by_free;
  };
  struct Node {
    NodeView view;
    std::vector<std::unique_ptr<Shelf>> shelves;
    std::map<int, Shelf*> by_device;
  };

  int class_of(const DeviceView& device);
  // In the order in which they are tried.
  std::vector<const Class*> classes_for(const Demand& demand) const;
  static bool is_of(const Class& model_class, const Demand& demand);
  void link(Shelf& shelf, bool in);
  void change(const std::vector<Spot>& spots, int64_t bytes_per_rank, bool take);
  static int holds(const Shelf& shelf, const Demand& demand);

  // One placement in the making.
  struct Gathering;
  bool on_one_node(const Class& from, Gathering& gathering) const;
  bool in_one_rack(const Class& from, Gathering& gathering) const;
  bool in_all_racks(const Class& from, Gathering& gathering) const;
  static bool gather(const Shelves& shelves, Gathering& gathering);

  std::map<std::string, std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Class>> classes_;
  int64_t version_ = 0;
};

}  // namespace tessera::server
