// Whole histories of a cluster, from seeds: jobs come, run for as long as they will, and end.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/scheduler/scheduler.h"

namespace tessera::server {
namespace {

constexpr int kSeeds = 1500;
constexpr absl::Duration kStop = absl::Seconds(30);

class History {
 public:
  History(uint64_t seed, bool with_priorities) : random_(seed), with_priorities_(with_priorities) {
    const int num_nodes = between(1, 4);
    for (int n = 0; n < num_nodes; ++n) {
      NodeView node{"n" + std::to_string(n), "r" + std::to_string(n % 2), {}};
      const int devices = between(1, 4);
      for (int d = 0; d < devices; ++d) {
        node.devices.push_back({d, "cuda", between(0, 2) == 0 ? "A100" : "H100", 80});
      }
      num_devices_ += devices;
      for (const DeviceView& device : node.devices) {
        models_[{node.name, device.index}] = device.model;
        num_h100_ += device.model == "H100";
      }
      scheduler_.put_node(node);
    }
    num_jobs_ = between(1, 14);
  }

  void run() {
    while (num_ended_ < num_jobs_) {
      ASSERT_LT(++rounds_, 2000) << "not all jobs come to their end";
      while (next_ < num_jobs_ && between(0, 2) > 0) submit();
      round();
      if (testing::Test::HasFatalFailure()) return;
      pass_time();
    }
  }

 private:
  struct Job {
    QueuedJob queued;
    bool preemptible = false;
    absl::Duration length;                               // that it will take
    absl::Duration ends;                                 // when it runs
    absl::Duration start_by = absl::InfiniteDuration();  // the best that it was promised
    std::vector<Spot> spots;
  };

  int between(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  void submit() {
    Job job;
    job.queued.number = ++next_;
    job.queued.id = "j" + std::to_string(next_);
    job.queued.project = "p";
    job.queued.kind = "cuda";
    job.queued.priority = with_priorities_ ? between(0, 2) : 0;
    const bool picky = num_h100_ > 0 && between(0, 3) == 0;
    if (picky) job.queued.model = "h100";
    job.queued.sizes = {{between(1, picky ? num_h100_ : num_devices_), 40}};
    if (job.queued.sizes[0].num_devices % 2 == 0 && between(0, 1) == 0) {
      job.queued.sizes.push_back({job.queued.sizes[0].num_devices / 2, 80});
    }
    job.length = absl::Seconds(between(1, 1000));
    if (between(0, 3) > 0) job.queued.longest = job.length + absl::Seconds(between(0, 500));
    job.preemptible = between(0, 3) > 0;
    scheduler_.queue(job.queued, now_);
    jobs_[next_] = job;
  }

  void round() {
    const Decisions decisions = scheduler_.round(now_);
    for (const JobStart& start : decisions.starts) started(start);
    for (const Preemption& preemption : decisions.preemptions) {
      Job& victim = jobs_.at(preemption.victim);
      ASSERT_TRUE(victim.preemptible);
      ASSERT_LT(victim.queued.priority, jobs_.at(preemption.by).queued.priority);
      victim.ends = std::min(victim.ends, now_ + absl::Seconds(between(1, 30)));
      stopped_.insert(preemption.victim);
    }
    if (with_priorities_) return;  // others may come in between
    for (auto& [number, job] : jobs_) {
      if (!job.spots.empty()) continue;
      job.start_by = std::min(job.start_by, scheduler_.why(number).start_by);
      ASSERT_GE(job.start_by, now_) << job.queued.id << " was promised to have started by then";
      return;  // those behind the first may have to give way to it
    }
  }

  void started(const JobStart& start) {
    Job& job = jobs_.at(start.number);
    ASSERT_LE(now_, job.start_by) << job.queued.id << " was put off";
    const auto& sizes = job.queued.sizes;
    const auto size = std::find_if(sizes.begin(), sizes.end(), [&](const GangSize& candidate) {
      return candidate.num_devices == static_cast<int>(start.spots.size());
    });
    ASSERT_NE(size, sizes.end()) << "a gang is whole";
    for (const Spot& spot : start.spots) {
      ASSERT_TRUE(taken_.insert(spot).second) << "a device has one owner";
      if (!job.queued.model.empty()) {
        ASSERT_EQ(models_.at({spot.node, spot.device}), "H100");
      }
    }
    job.spots = start.spots;
    job.ends = now_ + job.length;
    scheduler_.run({.id = job.queued.id,
                    .number = start.number,
                    .project = "p",
                    .priority = job.queued.priority,
                    .kind = "cuda",
                    .spots = job.spots,
                    .bytes_per_rank = size->bytes_per_rank,
                    .preemptible = job.preemptible,
                    .began = now_,
                    .ends_by = now_ + job.queued.longest,
                    .stop_time = kStop},
                   now_);
  }

  // To the end of the next job.
  void pass_time() {
    const auto next = std::min_element(jobs_.begin(), jobs_.end(), [](auto& a, auto& b) {
      return ends(a.second) < ends(b.second);
    });
    if (next == jobs_.end() || next->second.spots.empty()) {
      now_ += absl::Seconds(1);
      return;
    }
    now_ = std::max(now_, next->second.ends);
    const int64_t number = next->first;
    Job& job = next->second;
    for (const Spot& spot : job.spots) taken_.erase(spot);
    scheduler_.remove(number, now_);
    if (stopped_.erase(number) > 0 && now_ < job.ends + absl::Seconds(1)) {
      job.spots.clear();
      job.length = job.length / 2;
      scheduler_.queue(job.queued, now_);
      return;
    }
    jobs_.erase(next);
    ++num_ended_;
  }

  static absl::Duration ends(const Job& job) {
    return job.spots.empty() ? absl::InfiniteDuration() : job.ends;
  }

  std::mt19937_64 random_;
  const bool with_priorities_;
  Scheduler scheduler_{absl::Hours(1)};
  absl::Duration now_ = absl::Hours(1);
  int num_devices_ = 0, num_h100_ = 0, num_jobs_ = 0, num_ended_ = 0, rounds_ = 0;
  int64_t next_ = 0;
  std::map<std::pair<std::string, int>, std::string> models_;
  std::map<int64_t, Job> jobs_;
  std::set<Spot> taken_;
  std::set<int64_t> stopped_;
};

TEST(SchedulerHistory, NobodyIsPutOffPastAReservation) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    History(seed, /*with_priorities=*/false).run();
    if (HasFatalFailure()) return;
  }
}

TEST(SchedulerHistory, OnlyLowerPriorityIsStoppedAndAllEnd) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    History(seed, /*with_priorities=*/true).run();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::server
