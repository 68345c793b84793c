#include "worker/parallel/mesh.h"

#include <c10/util/Exception.h>

#include <map>
#include <string>

namespace tessera {
namespace {

using Groups = std::vector<std::shared_ptr<Collectives>>;

// Not owned.
std::shared_ptr<Collectives> borrowed(Collectives& group) {
  return {std::shared_ptr<Collectives>(), &group};
}

Groups groups_of(Collectives& group) {
  const std::shared_ptr<Collectives> all = borrowed(group), one = make_single_collectives();
  return {all, all, one, one, all};
}

// `count` ranks from `first` on, `stride` apart.
std::vector<int> ranks_from(int first, int count, int stride) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

// Groups of the same ranks are one, but for that of cp: what it sends must not wait behind the
// gathers of weights that were started before.
Groups make_groups(World& world, const MeshShape& shape) {
  TORCH_CHECK(shape.size() == world.size(), "a mesh of dp_replicate ", shape.dp_replicate,
              " x dp_shard ", shape.dp_shard, " x cp ", shape.cp, " has ", shape.size(),
              " ranks, and the job ", world.size());
  const int rank = world.rank(), shards = shape.dp_shard * shape.cp;
  const int context = rank % shape.cp;
  std::map<std::vector<int>, std::shared_ptr<Collectives>> made;
  const auto make = [&](const char* name, const std::vector<int>& ranks) {
    return world.make_group(std::string(name) + std::to_string(ranks.front()), ranks);
  };
  const auto shared = [&](const char* name, const std::vector<int>& ranks) {
    std::shared_ptr<Collectives>& group = made[ranks];
    if (!group) group = make(name, ranks);
    return group;
  };
  Groups groups{shared("world/", ranks_from(0, shape.size(), 1)),
                shared("shard/", ranks_from(rank / shards * shards, shards, 1)),
                shared("replicate/", ranks_from(rank % shards, shape.dp_replicate, shards)),
                make("context/", ranks_from(rank - context, shape.cp, 1)),
                shared("data/", ranks_from(context, shape.size() / shape.cp, shape.cp))};
  groups.front()->barrier();  // the world may serve what others still read
  return groups;
}

}  // namespace

Mesh::Mesh(const MeshShape& shape, const Groups& groups, const Groups& kept)
    : shape(shape),
      world(*groups[0]),
      shard(*groups[1]),
      replicate(*groups[2]),
      context(*groups[3]),
      data(*groups[4]),
      owned_(groups) {
  owned_.insert(owned_.end(), kept.begin(), kept.end());
}

Mesh::Mesh(Collectives& group) : Mesh({.dp_shard = group.size()}, groups_of(group)) {}

Mesh::Mesh(World& world, const MeshShape& shape) : Mesh(shape, make_groups(world, shape)) {}

}  // namespace tessera
