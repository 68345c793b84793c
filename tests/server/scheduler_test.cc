#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr absl::Duration kHour = absl::Hours(1);

NodeView node(const std::string& name, int num_devices, const std::string& rack = "",
              const std::string& kind = "cpu", const std::string& model = "m",
              int64_t memory_bytes = 0) {
  NodeView view{name, rack, {}};
  for (int i = 0; i < num_devices; ++i) view.devices.push_back({i, kind, model, memory_bytes});
  return view;
}

QueuedJob job(int64_t number, int num_devices, int priority = 0) {
  return {.id = "j" + std::to_string(number),
          .number = number,
          .project = "p",
          .priority = priority,
          .kind = "cpu",
          .sizes = {{num_devices, 0}}};
}

QueuedJob timed(int64_t number, int num_devices, absl::Duration longest) {
  QueuedJob queued = job(number, num_devices);
  queued.longest = longest;
  return queued;
}

// A scheduler, and what became of its jobs.
class SchedulerTest : public testing::Test {
 protected:
  void queue(const QueuedJob& queued) {
    jobs_[queued.number] = queued;
    scheduler.queue(queued, now);
  }

  // One round. Started jobs are told as running, as the coordinator does.
  Decisions round() {
    Decisions decisions = scheduler.round(now);
    for (const JobStart& start : decisions.starts) {
      const QueuedJob& queued = jobs_.at(start.number);
      const auto size =
          std::find_if(queued.sizes.begin(), queued.sizes.end(), [&](const GangSize& candidate) {
            return candidate.num_devices == static_cast<int>(start.spots.size());
          });
      scheduler.run({.id = queued.id,
                     .number = queued.number,
                     .project = queued.project,
                     .priority = queued.priority,
                     .kind = queued.kind,
                     .spots = start.spots,
                     .bytes_per_rank = size->bytes_per_rank,
                     .preemptible = true,
                     .began = now,
                     .ends_by = now + queued.longest,
                     .stop_time = absl::Seconds(60)},
                    now);
    }
    return decisions;
  }

  std::vector<int64_t> started() {
    std::vector<int64_t> numbers;
    for (const JobStart& start : round().starts) numbers.push_back(start.number);
    return numbers;
  }

  std::vector<std::string> places(int64_t number) {
    std::vector<std::string> places;
    for (const Spot& spot : scheduler.running().at(number).spots) {
      places.push_back(spot.node + std::to_string(spot.device));
    }
    return places;
  }

  void end(int64_t number) { scheduler.remove(number, now); }

  absl::Duration now = kHour;
  Scheduler scheduler{absl::Hours(24)};

 private:
  std::map<int64_t, QueuedJob> jobs_;
};

TEST_F(SchedulerTest, SaysWhatAJobWaitsFor) {
  scheduler.put_node(node("a", 4));
  queue(job(9, 2));
  round();
  queue(job(10, 3));
  queue(job(11, 1));
  queue(job(12, 9));
  QueuedJob late = job(13, 1);
  late.not_before = now + absl::Seconds(5);
  queue(late);
  round();
  EXPECT_EQ(scheduler.why(10).reason, "needs 3 cpu devices, 2 free of 4");
  EXPECT_EQ(scheduler.why(11).reason, "needs 1 cpu device, 2 free of 4, after job j10");
  EXPECT_THAT(scheduler.why(12).reason, HasSubstr("could never hold it"));
  EXPECT_THAT(scheduler.why(13).reason, HasSubstr("waits a while"));
  EXPECT_THAT(scheduler.order(10, now), ElementsAre(10, 11, 12, 13));
}

TEST_F(SchedulerTest, AnImpossibleJobHoldsUpNobody) {
  scheduler.put_node(node("a", 2));
  queue(job(1, 4));
  queue(job(2, 2));
  EXPECT_THAT(started(), ElementsAre(2));
}

TEST_F(SchedulerTest, AWaitingJobHoldsUpOnlyItsKind) {
  scheduler.put_node(node("a", 2));
  scheduler.put_node(node("g", 1, "", "cuda"));
  queue(job(1, 1));
  round();
  queue(job(2, 2));
  queue(job(3, 1));
  QueuedJob gpu = job(4, 1);
  gpu.kind = "cuda";
  queue(gpu);
  EXPECT_THAT(started(), ElementsAre(4));
}

TEST_F(SchedulerTest, HigherPriorityThenOlderFirst) {
  scheduler.put_node(node("a", 1));
  queue(job(1, 1));
  queue(job(3, 1, 5));
  queue(job(2, 1, 5));
  EXPECT_THAT(scheduler.order(9, now), ElementsAre(2, 3, 1));
  EXPECT_THAT(started(), ElementsAre(2));
}

TEST_F(SchedulerTest, AJobThatMayNotStartYetWaitsAlone) {
  scheduler.put_node(node("a", 1));
  QueuedJob late = job(1, 1);
  late.not_before = now + absl::Seconds(10);
  queue(late);
  queue(job(2, 1));
  EXPECT_THAT(started(), ElementsAre(2));
  end(2);
  EXPECT_THAT(started(), IsEmpty());
  now += absl::Seconds(10);
  EXPECT_THAT(started(), ElementsAre(1));
}

TEST_F(SchedulerTest, TakesTheTightestNodeAndNeighbours) {
  scheduler.put_node(node("big", 8));
  scheduler.put_node(node("small", 2));
  queue(job(1, 2));
  round();
  EXPECT_THAT(places(1), ElementsAre("small0", "small1"));
  for (int64_t number = 2; number <= 9; ++number) queue(job(number, 1));
  round();
  end(3);                                           // big1
  for (const int64_t number : {5, 6}) end(number);  // big3, big4
  queue(job(10, 2));
  round();
  EXPECT_THAT(places(10), ElementsAre("big3", "big4"));
}

TEST_F(SchedulerTest, SpreadsOverAsFewNodesAsCanBe) {
  scheduler.put_node(node("a", 1));
  scheduler.put_node(node("b", 3));
  scheduler.put_node(node("c", 2));
  queue(job(1, 5));
  round();
  EXPECT_THAT(places(1), ElementsAre("b0", "b1", "b2", "c0", "c1"));
}

TEST_F(SchedulerTest, KeepsAGangInOneRack) {
  scheduler.put_node(node("a", 4, "r1"));
  scheduler.put_node(node("b", 2, "r2"));
  scheduler.put_node(node("c", 3, "r2"));
  queue(job(1, 5));
  round();
  EXPECT_THAT(places(1), ElementsAre("c0", "c1", "c2", "b0", "b1"));
  end(1);
  queue(job(2, 7));
  round();
  EXPECT_EQ(places(2).size(), 7U) << "over both where one rack does not hold it";
}

TEST_F(SchedulerTest, PlacesByModelAndMemory) {
  scheduler.put_node(node("small", 2, "", "cuda", "NVIDIA A10G", 24));
  scheduler.put_node(node("large", 2, "", "cuda", "NVIDIA H100 80GB", 80));
  const auto gpus = [](int64_t number, const std::string& model, int64_t bytes) {
    QueuedJob queued = job(number, 1);
    queued.kind = "cuda";
    queued.model = model;
    queued.sizes = {{1, bytes}};
    return queued;
  };
  queue(gpus(1, "", 10));
  queue(gpus(2, "", 40));
  queue(gpus(3, "h100", 0));
  queue(gpus(4, "h100", 0));
  queue(gpus(5, "", 100));
  EXPECT_THAT(started(), ElementsAre(1, 2, 3));
  EXPECT_THAT(places(1), ElementsAre("small0")) << "the least memory that does";
  EXPECT_THAT(places(2), ElementsAre("large0"));
  EXPECT_THAT(places(3), ElementsAre("large1"));
  EXPECT_EQ(scheduler.why(4).reason, "needs 1 cuda device of model h100, 0 free of 2");
  EXPECT_THAT(scheduler.why(5).reason, HasSubstr("could never hold it, with 100 B for each rank"));
}

TEST_F(SchedulerTest, CpuDevicesShareTheirMachinesMemory) {
  scheduler.put_node(node("a", 4, "", "cpu", "m", 25));  // 100 together
  QueuedJob two = job(1, 2);
  two.sizes = {{2, 40}};
  queue(two);
  two = job(2, 1);
  two.sizes = {{1, 30}};
  queue(two);
  EXPECT_THAT(started(), ElementsAre(1)) << "20 are left";
  end(1);
  EXPECT_THAT(started(), ElementsAre(2));
}

TEST_F(SchedulerTest, ProjectsTakeTurnsByWhatTheyHad) {
  scheduler.put_node(node("a", 6));
  scheduler.shares().set("heavy", {.weight = 2});
  for (int64_t number = 1; number <= 12; ++number) {
    QueuedJob queued = job(number, 1);
    queued.project = number <= 6 ? "heavy" : "light";
    queue(queued);
  }
  EXPECT_EQ(round().starts.size(), 6U);
  EXPECT_EQ(scheduler.shares().held("heavy"), 4);
  EXPECT_EQ(scheduler.shares().held("light"), 2);
}

TEST_F(SchedulerTest, WhatAProjectHadIsForgotten) {
  scheduler.put_node(node("a", 1));
  QueuedJob first = job(1, 1);
  first.project = "busy";
  queue(first);
  round();
  now += absl::Hours(24);
  EXPECT_NEAR(scheduler.shares().mean("busy", now), 0.5, 1e-9) << "half of what it holds now";
  QueuedJob again = job(2, 1);
  again.project = "busy";
  queue(again);
  QueuedJob other = job(3, 1);
  other.project = "idle";
  queue(other);
  end(1);
  EXPECT_THAT(started(), ElementsAre(3));
  now += absl::Hours(24 * 30);
  EXPECT_NEAR(scheduler.shares().mean("busy", now), 0, 1e-6);
}

TEST_F(SchedulerTest, AQuotaHoldsUpItsOwnProjectOnly) {
  scheduler.put_node(node("a", 4));
  scheduler.shares().set("p", {.max_devices = 2});
  queue(job(1, 2));
  queue(job(2, 1));
  QueuedJob other = job(3, 2);
  other.project = "q";
  queue(other);
  EXPECT_THAT(started(), testing::UnorderedElementsAre(1, 3));
  EXPECT_EQ(scheduler.why(2).reason, "needs 1 cpu device; project p holds 2 and may hold 2");
  end(1);
  EXPECT_THAT(started(), ElementsAre(2));
}

TEST_F(SchedulerTest, BackfillsWhatIsOverInTime) {
  scheduler.put_node(node("a", 4));
  queue(timed(1, 2, absl::Minutes(30)));
  round();
  queue(job(2, 4));
  queue(timed(3, 2, absl::Minutes(31)));
  queue(timed(4, 1, absl::Minutes(30)));
  queue(job(5, 1));
  EXPECT_THAT(started(), ElementsAre(4)) << "3 would be too long, 5 has no end";
  EXPECT_EQ(scheduler.why(2).start_by, now + absl::Minutes(30));
  now += absl::Minutes(30);
  end(1);
  end(4);
  EXPECT_THAT(started(), ElementsAre(2));
}

TEST_F(SchedulerTest, BackfillsBesideTheReservation) {
  scheduler.put_node(node("a", 4));
  queue(timed(1, 3, absl::Minutes(30)));
  round();
  queue(job(2, 3));
  queue(job(3, 1));
  EXPECT_THAT(started(), ElementsAre(3)) << "three are left for 2 whatever 3 does";
}

TEST_F(SchedulerTest, WithoutATimeNobodyPasses) {
  scheduler.put_node(node("a", 4));
  queue(job(1, 2));
  round();
  queue(job(2, 4));
  queue(timed(3, 1, absl::Seconds(1)));
  EXPECT_THAT(started(), IsEmpty());
  EXPECT_EQ(scheduler.why(2).start_by, absl::InfiniteDuration());
}

TEST_F(SchedulerTest, StopsTheFewestOfLowestPriority) {
  scheduler.put_node(node("a", 6));
  queue(job(1, 1, 0));
  queue(job(2, 1, 0));
  round();
  now += absl::Minutes(1);
  queue(job(3, 2, 1));
  queue(job(4, 2, 0));
  round();
  queue(job(5, 2, 3));
  const Decisions decisions = round();
  ASSERT_EQ(decisions.preemptions.size(), 1U) << "one of two devices, not two of one";
  EXPECT_EQ(decisions.preemptions[0].victim, 4);
  EXPECT_EQ(decisions.preemptions[0].by, 5);
  EXPECT_THAT(scheduler.why(5).reason, HasSubstr("stops j4"));
  EXPECT_EQ(scheduler.why(5).start_by, now + absl::Seconds(60));
  EXPECT_THAT(round().preemptions, IsEmpty()) << "it waits for the one that is being stopped";
  queue(job(6, 1, 0));
  EXPECT_THAT(started(), IsEmpty());
  end(4);
  queue(job(4, 2, 0));  // back in the queue
  EXPECT_THAT(started(), ElementsAre(5));
  EXPECT_THAT(round().preemptions, IsEmpty()) << "no cycle";
}

TEST_F(SchedulerTest, EachOfSeveralHasOthersStopped) {
  scheduler.put_node(node("a", 3));
  for (int64_t number = 1; number <= 3; ++number) queue(job(number, 1));
  round();
  queue(job(4, 1, 2));
  queue(job(5, 1, 1));
  EXPECT_EQ(round().preemptions.size(), 2U);
  EXPECT_THAT(round().preemptions, IsEmpty());
}

TEST_F(SchedulerTest, StopsNobodyInVain) {
  scheduler.put_node(node("a", 4));
  RunningJob fixed{.id = "f", .number = 1, .project = "p", .kind = "cpu", .spots = {{"a", 0}}};
  scheduler.run(fixed, now);
  queue(job(2, 3));
  round();
  queue(job(3, 4, 9));
  EXPECT_THAT(round().preemptions, IsEmpty()) << "1 may not be stopped";
  queue(job(4, 3, 0));
  EXPECT_THAT(round().preemptions, IsEmpty()) << "the same priority";
}

TEST_F(SchedulerTest, AnElasticJobTakesWhatThereIs) {
  scheduler.put_node(node("a", 3));
  QueuedJob elastic = job(1, 4);
  elastic.sizes = {{4, 0}, {2, 0}, {1, 0}};
  queue(elastic);
  EXPECT_THAT(started(), ElementsAre(1));
  EXPECT_EQ(places(1).size(), 2U);
  end(1);
  scheduler.put_node(node("b", 1));
  queue(elastic);
  round();
  EXPECT_EQ(places(1).size(), 4U) << "grows back";
}

TEST_F(SchedulerTest, ANodeThatComesBackHasItsJobs) {
  scheduler.put_node(node("a", 2));
  queue(job(1, 1));
  round();
  scheduler.remove_node("a");
  queue(job(2, 2));
  EXPECT_THAT(started(), IsEmpty());
  scheduler.put_node(node("a", 2));
  EXPECT_THAT(started(), IsEmpty());
  end(1);
  EXPECT_THAT(started(), ElementsAre(2));
}

}  // namespace
}  // namespace tessera::server
