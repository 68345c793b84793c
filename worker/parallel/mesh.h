// The ranks of a job as a mesh of three axes: dp_replicate, dp_shard and cp, in this order.
//
// rank = (replicate * dp_shard + shard) * cp + context. Weights are sharded over dp_shard x cp;
// what has the same place there is a copy of the shard on dp_replicate (HSDP). Rows of the data are
// dealt to the ranks of dp_replicate x dp_shard, and those of one cp axis share what one such rank
// gets, each with a part of the stream (worker/batch.h, StreamPart). An axis of size one is the
// identity.
#pragma once

#include <memory>
#include <vector>

#include "worker/parallel/collectives.h"
#include "worker/parallel/world.h"

namespace tessera {

struct MeshShape {
  int dp_replicate = 1;
  int dp_shard = 1;
  int cp = 1;

  int size() const { return dp_replicate * dp_shard * cp; }
};

// The groups of one rank. A copy shares them.
struct Mesh {
  // All ranks share the weights, none a batch: what a world is without a mesh. `group` must outlive
  // it.
  Mesh(Collectives& group);  // NOLINT(google-explicit-constructor): a group is such a mesh
  // Collective: every rank of the world makes it. Requires shape.size() ranks. Throws NetworkError.
  Mesh(World& world, const MeshShape& shape);

  MeshShape shape;
  Collectives& world;
  Collectives& shard;      // dp_shard x cp: one copy of the weights
  Collectives& replicate;  // the ranks with the same shard
  Collectives& context;    // cp: those that share a stream
  Collectives& data;       // dp_replicate x dp_shard: those that rows are dealt to

  // Replaces each group by what `wrap` makes of it, which must refer to the group it is given.
  template <typename Wrap>
  Mesh wrapped(const Wrap& wrap) const {
    std::vector<std::shared_ptr<Collectives>> groups;
    for (Collectives* group : {&world, &shard, &replicate, &context, &data})
      groups.push_back(wrap(*group));
    return Mesh(shape, groups, owned_);
  }

 private:
  using Groups = std::vector<std::shared_ptr<Collectives>>;
  // world, shard, replicate, context, data; `kept` live as long.
  Mesh(const MeshShape& shape, const Groups& groups, const Groups& kept = {});

  Groups owned_;
};

}  // namespace tessera
