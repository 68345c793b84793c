// The groups of a mesh, on every CPU backend.
#include "worker/parallel/mesh.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "tests/support/ranks.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::run_worlds;

// Ranks of the world in the group, in its order.
std::vector<int64_t> members(Collectives& group, int world_rank) {
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, at::full({1}, world_rank, at::kLong))->wait();
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

std::vector<int64_t> stretch(int64_t first, int64_t count, int64_t stride = 1) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

class MeshTest : public ::testing::TestWithParam<Backend> {};

TEST_P(MeshTest, AxesHaveTheirRanks) {
  for (const MeshShape shape :
       {MeshShape{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {2, 1, 1}, {2, 1, 2}, {1, 2, 2}, {2, 2, 2}}) {
    run_worlds(GetParam(), shape.size(), [&](World& world) {
      const Mesh mesh(world, shape);
      const int rank = world.rank(), shards = shape.dp_shard * shape.cp;
      EXPECT_EQ(mesh.world.rank(), rank);
      EXPECT_EQ(members(mesh.world, rank), stretch(0, shape.size()));
      EXPECT_EQ(members(mesh.shard, rank), stretch(rank / shards * shards, shards));
      EXPECT_EQ(members(mesh.replicate, rank), stretch(rank % shards, shape.dp_replicate, shards));
      EXPECT_EQ(members(mesh.context, rank), stretch(rank / shape.cp * shape.cp, shape.cp));
      EXPECT_EQ(members(mesh.data, rank),
                stretch(rank % shape.cp, shape.size() / shape.cp, shape.cp));
      // The place in the data is that of the cp axis, whichever of its ranks asks.
      EXPECT_EQ(mesh.data.rank(), rank / shape.cp);
    });
  }
}

TEST_P(MeshTest, GroupsOfOneAxisDoNotMeet) {
  const MeshShape shape{2, 1, 2};
  run_worlds(GetParam(), shape.size(), [&](World& world) {
    const Mesh mesh(world, shape);
    for (int round = 0; round < 3; ++round) {
      const at::Tensor sum = at::full({1}, world.rank(), at::kLong);
      mesh.context.all_reduce_sum(sum);
      EXPECT_EQ(sum.item<int64_t>(), world.rank() < 2 ? 1 : 5);
      mesh.replicate.all_reduce_sum(sum);
      EXPECT_EQ(sum.item<int64_t>(), 6);
    }
  });
}

std::string name_of(const ::testing::TestParamInfo<Backend>& info) {
  constexpr std::array kNames = {"Threads", "SharedMemory", "Gloo"};
  return kNames[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Backends, MeshTest,
                         ::testing::Values(Backend::kThreads, Backend::kSharedMemory,
                                           Backend::kGloo),
                         name_of);

TEST(Mesh, OfAGroupIsAllShards) {
  const auto group = make_single_collectives();
  const Mesh mesh(*group);
  EXPECT_EQ(mesh.shape.size(), 1);
  EXPECT_EQ(&mesh.shard, group.get());
}

TEST(Mesh, RefusesAWorldOfAnotherSize) {
  const auto world = make_single_world();
  EXPECT_THROW(Mesh(*world, {1, 1, 2}), c10::Error);
}

TEST(Mesh, OfARankThatIsAloneHasItsPlace) {
  const auto world = make_fake_world({.rank = 5, .size = 8, .ranks_per_machine = 8});
  const Mesh mesh(*world, {2, 2, 2});
  EXPECT_EQ(mesh.world.rank(), 5);
  EXPECT_EQ(mesh.shard.rank(), 1);
  EXPECT_EQ(mesh.replicate.rank(), 1);
  EXPECT_EQ(mesh.context.rank(), 1);
  EXPECT_EQ(mesh.data.rank(), 2);
}

}  // namespace
}  // namespace tessera
