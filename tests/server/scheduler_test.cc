#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace tessera::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

NodeView node(const std::string& name, int num_devices, const std::set<int>& taken = {},
              const std::string& kind = "cpu") {
  NodeView view{name, {}};
  for (int i = 0; i < num_devices; ++i) view.devices.push_back({i, kind, !taken.contains(i)});
  return view;
}

QueuedJob job(int64_t number, int num_devices, int priority = 0, const std::string& kind = "cpu") {
  return {"j" + std::to_string(number), kind, num_devices, priority, number, absl::ZeroDuration()};
}

std::vector<std::string> where(const Decision& decision) {
  std::vector<std::string> places;
  for (const v1::Placement& placement : decision.placements) {
    places.push_back(placement.node() + std::to_string(placement.device_index()));
  }
  return places;
}

TEST(Scheduler, SaysWhatAJobWaitsFor) {
  const auto decisions =
      schedule({node("a", 4, {0, 1})}, {job(1, 3), job(2, 1), job(3, 9)}, absl::ZeroDuration());
  EXPECT_EQ(decisions[0].reason, "needs 3 cpu devices, 2 free of 4");
  EXPECT_EQ(decisions[1].reason, "needs 1 cpu device, 2 free of 4, after job j1");
  EXPECT_THAT(decisions[2].reason, HasSubstr("could never hold it"));
}

TEST(Scheduler, AnImpossibleJobHoldsUpNobody) {
  const auto decisions = schedule({node("a", 2)}, {job(1, 4), job(2, 2)}, absl::ZeroDuration());
  EXPECT_TRUE(decisions[0].placements.empty());
  EXPECT_THAT(where(decisions[1]), ElementsAre("a0", "a1"));
}

TEST(Scheduler, AWaitingJobHoldsUpOnlyItsKind) {
  const auto decisions =
      schedule({node("a", 2, {0}), node("g", 1, {}, "cuda")},
               {job(1, 2), job(2, 1), job(3, 1, 0, "cuda")}, absl::ZeroDuration());
  EXPECT_TRUE(decisions[0].placements.empty());
  EXPECT_TRUE(decisions[1].placements.empty());
  EXPECT_THAT(where(decisions[2]), ElementsAre("g0"));
}

TEST(Scheduler, HigherPriorityThenOlderFirst) {
  const auto decisions =
      schedule({node("a", 1)}, {job(1, 1), job(3, 1, 5), job(2, 1, 5)}, absl::ZeroDuration());
  EXPECT_EQ(decisions[0].id, "j2");
  EXPECT_FALSE(decisions[0].placements.empty());
  EXPECT_EQ(decisions[1].id, "j3");
  EXPECT_EQ(decisions[2].id, "j1");
}

TEST(Scheduler, TakesTheTightestNodeAndNeighbours) {
  const auto tight =
      schedule({node("big", 8), node("small", 2)}, {job(1, 2)}, absl::ZeroDuration());
  EXPECT_THAT(where(tight[0]), ElementsAre("small0", "small1"));
  const auto neighbours = schedule({node("a", 8, {1, 4})}, {job(1, 2)}, absl::ZeroDuration());
  EXPECT_THAT(where(neighbours[0]), ElementsAre("a2", "a3"));
}

TEST(Scheduler, SpreadsOverAsFewNodesAsCanBe) {
  const auto decisions =
      schedule({node("a", 1), node("b", 3), node("c", 2)}, {job(1, 5)}, absl::ZeroDuration());
  EXPECT_THAT(where(decisions[0]), ElementsAre("b0", "b1", "b2", "c0", "c1"));
}

TEST(Scheduler, AJobThatMayNotStartYetWaitsAlone) {
  QueuedJob late = job(1, 1);
  late.not_before = absl::Seconds(10);
  const auto decisions = schedule({node("a", 1)}, {late, job(2, 1)}, absl::Seconds(9));
  EXPECT_TRUE(decisions[0].placements.empty());
  EXPECT_FALSE(decisions[1].placements.empty());
}

struct Scene {
  std::vector<NodeView> nodes;
  std::vector<QueuedJob> queue;
};

Scene arbitrary_scene() {
  Scene scene;
  const int num_nodes = *rc::gen::inRange(0, 5);
  for (int n = 0; n < num_nodes; ++n) {
    NodeView view{"n" + std::to_string(n), {}};
    const int num_devices = *rc::gen::inRange(0, 6);
    for (int i = 0; i < num_devices; ++i) {
      view.devices.push_back(
          {i, *rc::gen::element<std::string>("cpu", "cuda"), *rc::gen::arbitrary<bool>()});
    }
    scene.nodes.push_back(view);
  }
  const int num_jobs = *rc::gen::inRange(0, 8);
  for (int j = 0; j < num_jobs; ++j) {
    scene.queue.push_back(job(j + 1, *rc::gen::inRange(1, 8), *rc::gen::inRange(-1, 2),
                              *rc::gen::element<std::string>("cpu", "cuda")));
  }
  return scene;
}

TEST(Scheduler, HoldsItsPropertiesOnAnyScene) {
  EXPECT_TRUE(rc::check([] {
    const Scene scene = arbitrary_scene();
    std::map<std::pair<std::string, int>, const DeviceView*> devices;
    std::map<std::string, int> free, total;
    for (const NodeView& view : scene.nodes) {
      for (const DeviceView& device : view.devices) {
        devices[{view.name, device.index}] = &device;
        free[device.kind] += device.free;
        ++total[device.kind];
      }
    }
    std::map<std::string, const QueuedJob*> jobs;
    for (const QueuedJob& queued : scene.queue) jobs[queued.id] = &queued;
    const auto decisions = schedule(scene.nodes, scene.queue, absl::ZeroDuration());
    RC_ASSERT(decisions.size() == scene.queue.size());
    std::set<std::pair<std::string, int>> taken;
    std::set<std::string> waiting_kinds;
    const QueuedJob* before = nullptr;
    for (const Decision& decision : decisions) {
      const QueuedJob& queued = *jobs.at(decision.id);
      if (before != nullptr) {
        RC_ASSERT(before->priority > queued.priority ||
                  (before->priority == queued.priority && before->number < queued.number));
      }
      before = &queued;
      if (decision.placements.empty()) {
        RC_ASSERT(!decision.reason.empty());
        // It waits for a reason: behind another, or because there is no room.
        RC_ASSERT(waiting_kinds.contains(queued.kind) || free[queued.kind] < queued.num_devices);
        if (queued.num_devices <= total[queued.kind]) waiting_kinds.insert(queued.kind);
        continue;
      }
      RC_ASSERT(!waiting_kinds.contains(queued.kind));
      RC_ASSERT(static_cast<int>(decision.placements.size()) == queued.num_devices);
      free[queued.kind] -= queued.num_devices;
      for (int rank = 0; rank < queued.num_devices; ++rank) {
        const v1::Placement& placement = decision.placements[rank];
        const std::pair place(placement.node(), placement.device_index());
        RC_ASSERT(placement.rank() == rank);
        RC_ASSERT(devices.at(place)->free && devices.at(place)->kind == queued.kind);
        RC_ASSERT(taken.insert(place).second);
      }
    }
  }));
}

}  // namespace
}  // namespace tessera::server
