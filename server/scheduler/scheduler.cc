#include "server/scheduler/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/bytes.h"
#include "server/scheduler/round.h"

namespace tessera::server {
namespace {

std::string devices_of(int64_t count, const std::string& kind) {
  return absl::StrCat(count, " ", kind, " device", count == 1 ? "" : "s");
}

}  // namespace

void Scheduler::put_node(const NodeView& view) {
  inventory_.put(view);
  const auto held = holders_.find(view.name);
  if (held == holders_.end()) return;
  for (const auto& [device, number] : held->second) {
    inventory_.take({{view.name, device}}, running_.at(number).bytes_per_rank);
  }
}

void Scheduler::remove_node(const std::string& name) { inventory_.remove(name); }

void Scheduler::hold(const RunningJob& job, absl::Duration now) {
  inventory_.take(job.spots, job.bytes_per_rank);
  shares_.add(job.project, static_cast<int>(job.spots.size()), now);
  for (const Spot& spot : job.spots) holders_[spot.node][spot.device] = job.number;
  Pool& pool = pools_[job.kind];
  if (job.ends_by < absl::InfiniteDuration()) pool.by_end.insert({job.ends_by, job.number});
  if (job.ending) {
    pool.ending.insert(job.number);
  } else if (job.preemptible) {
    pool.preemptible[job.priority].insert(job.number);
  }
}

void Scheduler::let_go(const RunningJob& job, absl::Duration now) {
  inventory_.give(job.spots, job.bytes_per_rank);
  shares_.add(job.project, -static_cast<int>(job.spots.size()), now);
  for (const Spot& spot : job.spots) {
    const auto node = holders_.find(spot.node);
    node->second.erase(spot.device);
    if (node->second.empty()) holders_.erase(node);
  }
  Pool& pool = pools_[job.kind];
  pool.by_end.erase({job.ends_by, job.number});
  pool.ending.erase(job.number);
  const auto same = pool.preemptible.find(job.priority);
  if (same == pool.preemptible.end()) return;
  same->second.erase(job.number);
  if (same->second.empty()) pool.preemptible.erase(same);
}

void Scheduler::queue(const QueuedJob& job, absl::Duration now) {
  remove(job.number, now);
  queue_.put(job, now);
}

void Scheduler::run(const RunningJob& job, absl::Duration now) {
  remove(job.number, now);
  hold(job, now);
  running_[job.number] = job;
}

void Scheduler::remove(int64_t number, absl::Duration now) {
  queue_.remove(number);
  const auto running = running_.find(number);
  if (running == running_.end()) return;
  let_go(running->second, now);
  running_.erase(running);
}

Decisions Scheduler::round(absl::Duration now) {
  Decisions decisions;
  queue_.wake(now);
  reservations_.clear();
  for (const std::string& kind : queue_.kinds()) {
    if (!queue_.empty(kind)) Round(*this, kind, now, decisions).run();
  }
  return decisions;
}

std::vector<int64_t> Scheduler::order(size_t limit, absl::Duration now) const {
  return queue_.order([&](const std::string& project) { return shares_.score(project, now); },
                      limit);
}

Waiting Scheduler::why(int64_t number) const {
  const JobQueue::Entry& entry = *queue_.find(number);
  const QueuedJob& job = entry.job;
  Waiting waiting{.number = number};
  if (entry.delayed) {
    waiting.reason = "waits a while after a failed attempt";
    return waiting;
  }
  const GangSize& size = job.sizes.back();
  const Demand demand = entry.shape->demand(size);
  waiting.reason =
      absl::StrCat("needs ", devices_of(size.num_devices, job.kind),
                   job.model.empty() ? "" : absl::StrCat(" of model ", job.model), ", ",
                   inventory_.num_free(demand), " free of ", inventory_.num_devices(demand));
  std::string& text = waiting.reason;
  const std::string bytes = spec::format_bytes(size.bytes_per_rank);
  const bool fits_at_all =
      std::any_of(job.sizes.begin(), job.sizes.end(), [&](const GangSize& candidate) {
        return inventory_.capacity(entry.shape->demand(candidate)) >= candidate.num_devices;
      });
  if (size.num_devices > shares_.left(job.project)) {
    text = absl::StrCat("needs ", devices_of(size.num_devices, job.kind), "; project ", job.project,
                        " holds ", shares_.held(job.project), " and may hold ",
                        *shares_.policy(job.project).max_devices);
  } else if (!fits_at_all) {
    const bool enough = inventory_.num_devices(demand) >= size.num_devices;
    absl::StrAppend(&text, "; the connected nodes could never hold it",
                    enough ? absl::StrCat(", with ", bytes, " for each rank") : "");
  } else if (const auto kept = reservations_.find(job.kind); kept != reservations_.end()) {
    const auto own = std::find_if(kept->second.begin(), kept->second.end(),
                                  [&](const Reservation& other) { return other.number == number; });
    if (own != kept->second.end()) {
      waiting.start_by = own->start_by;
      if (own->victims.empty()) return waiting;
      absl::StrAppend(&text, "; stops ",
                      absl::StrJoin(own->victims, ", ", [this](std::string* out, int64_t victim) {
                        const auto running = running_.find(victim);
                        if (running != running_.end()) *out += running->second.id;
                      }));
    } else if (!kept->second.empty()) {
      const JobQueue::Entry* first = queue_.find(kept->second.front().number);
      if (first != nullptr) absl::StrAppend(&text, ", after job ", first->job.id);
    }
  }
  return waiting;
}

}  // namespace tessera::server
