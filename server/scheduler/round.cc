#include "server/scheduler/round.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>

namespace tessera::server {
namespace {

// Jobs whose ends a reservation looks at; one that needs more of them waits without a time.
constexpr int kMaxEnds = 1024;

}  // namespace

class Round::Supposing {
 public:
  explicit Supposing(Inventory& inventory) : inventory_(inventory) {}
  ~Supposing() {
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      inventory_.take(part->first, part->second);
    }
  }
  Supposing(const Supposing&) = delete;
  Supposing& operator=(const Supposing&) = delete;

  // Returns how many they are.
  int64_t is_over(const RunningJob& job, std::vector<Spot> spots) {
    inventory_.give(spots, job.bytes_per_rank);
    parts_.emplace_back(std::move(spots), job.bytes_per_rank);
    return static_cast<int64_t>(parts_.back().first.size());
  }

 private:
  Inventory& inventory_;
  std::vector<std::pair<std::vector<Spot>, int64_t>> parts_;
};

Round::Round(Scheduler& scheduler, const std::string& kind, absl::Duration now,
             Decisions& decisions)
    : scheduler_(scheduler),
      kind_(kind),
      now_(now),
      decisions_(decisions),
      pool_(scheduler.pools_[kind]) {}

Round::~Round() {
  for (const Reservation& kept : reservations_) {
    scheduler_.inventory_.give(kept.spots, kept.bytes_per_rank);
  }
  scheduler_.reservations_[kind_] = std::move(reservations_);
}

void Round::run() {
  JobQueue::Walk walk(scheduler_.queue_, kind_, [this](const std::string& project) {
    return scheduler_.shares_.score(project, now_);
  });
  std::set<const Shape*> without_room;
  for (int looks = 0; looks < Scheduler::kMaxLooks;) {
    const JobQueue::Entry* entry = walk.next();
    if (entry == nullptr) return;
    const int priority = entry->job.priority;
    const Shape* shape = entry->shape;
    const Outcome outcome = without_room.contains(shape) ? Outcome::kNoRoom : try_start(*entry);
    if (outcome == Outcome::kStarted) continue;
    ++looks;
    if (outcome == Outcome::kReserved) {
      walk.skip();
    } else {
      walk.pass_over();
    }
    if (outcome == Outcome::kNoRoom) without_room.insert(shape);
    if (!is_anything_left(priority)) return;
  }
}

bool Round::is_anything_left(int priority) const {
  if (can_preempt(priority) || scheduler_.inventory_.num_free(kind_) > 0) return true;
  if (reservations_.empty()) return true;  // the first that waits is still to be found
  return std::any_of(reservations_.begin(), reservations_.end(), [](const Reservation& kept) {
    return !kept.spots.empty() && kept.start_by < absl::InfiniteDuration();
  });
}

bool Round::can_preempt(int priority) const {
  return !pool_.preemptible.empty() && pool_.preemptible.begin()->first < priority;
}

Round::Outcome Round::try_start(const JobQueue::Entry& entry) {
  const QueuedJob& job = entry.job;
  const int left = scheduler_.shares_.left(job.project);
  if (job.sizes.back().num_devices > left) return Outcome::kNoQuota;
  for (const GangSize& size : job.sizes) {
    if (size.num_devices > left) continue;
    auto spots = find_spots(entry.shape->demand(size), size.num_devices, job.longest);
    if (!spots) continue;
    start(job, size, *std::move(spots));
    return Outcome::kStarted;
  }
  if (reserve(entry)) return Outcome::kReserved;
  // Others of the shape may have a larger quota left.
  return job.sizes.front().num_devices > left ? Outcome::kNoQuota : Outcome::kNoRoom;
}

std::optional<std::vector<Spot>> Round::find_spots(const Demand& demand, int count,
                                                   absl::Duration longest) {
  Inventory& inventory = scheduler_.inventory_;
  if (auto spots = inventory.place(demand, count)) return spots;
  const auto is_in_time = [&](const Reservation& kept) {
    return kept.start_by < absl::InfiniteDuration() && now_ + longest <= kept.start_by;
  };
  for (const Reservation& kept : reservations_) {
    if (is_in_time(kept)) inventory.give(kept.spots, kept.bytes_per_rank);
  }
  auto spots = inventory.place(demand, count);
  for (Reservation& kept : reservations_) {
    if (!is_in_time(kept)) continue;
    if (spots) {
      std::erase_if(kept.spots, [&](const Spot& spot) {
        return std::find(spots->begin(), spots->end(), spot) != spots->end();
      });
    }
    inventory.take(kept.spots, kept.bytes_per_rank);
  }
  return spots;
}

void Round::start(const QueuedJob& job, const GangSize& size, std::vector<Spot> spots) {
  RunningJob running{.id = job.id,
                     .number = job.number,
                     .project = job.project,
                     .priority = job.priority,
                     .kind = job.kind,
                     .spots = std::move(spots),
                     .bytes_per_rank = size.bytes_per_rank,
                     .began = now_,
                     .ends_by = now_ + job.longest};
  decisions_.starts.push_back({running.number, running.spots});
  scheduler_.queue_.remove(running.number);
  scheduler_.hold(running, now_);
  scheduler_.running_[running.number] = std::move(running);
}

bool Round::reserve(const JobQueue::Entry& entry) {
  const QueuedJob& job = entry.job;
  const int left = scheduler_.shares_.left(job.project);
  const GangSize* size = nullptr;
  for (const GangSize& candidate : job.sizes) {
    if (candidate.num_devices > left) continue;
    if (scheduler_.inventory_.capacity(entry.shape->demand(candidate)) < candidate.num_devices) {
      continue;
    }
    size = &candidate;  // the smallest that can ever be
  }
  if (size == nullptr || reservations_.size() >= Scheduler::kMaxReservations) return false;
  const Demand demand = entry.shape->demand(*size);
  Reservation made{.number = job.number, .bytes_per_rank = size->bytes_per_rank};
  const bool is_first = !reserved_models_.contains(job.model);
  const bool preempts = makes_room(job, demand, size->num_devices, made);
  if (!is_first && !preempts && pool_.ending.empty()) return false;
  if (!keep(demand, size->num_devices, !is_first, made)) return false;
  reserved_models_.insert(job.model);
  reservations_.push_back(std::move(made));
  return true;
}

std::vector<Spot> Round::usable(int64_t number, const Demand& demand) const {
  std::vector<Spot> spots;
  for (const Spot& spot : scheduler_.running_.at(number).spots) {
    if (scheduler_.inventory_.suits(spot, demand) && !promised_.contains(spot)) {
      spots.push_back(spot);
    }
  }
  return spots;
}

bool Round::makes_room(const QueuedJob& job, const Demand& demand, int count, Reservation& made) {
  if (!can_preempt(job.priority)) return false;
  Supposing supposing(scheduler_.inventory_);
  int64_t soon = scheduler_.inventory_.room(demand);
  for (const int64_t number : pool_.ending) {
    soon += supposing.is_over(scheduler_.running_.at(number), usable(number, demand));
  }
  // What is being stopped already may do.
  if (soon >= count && scheduler_.inventory_.place(demand, count)) return false;
  const auto victims = choose_victims(job.priority, demand, count - soon);
  if (victims.empty()) return false;
  for (const int64_t number : victims) {
    supposing.is_over(scheduler_.running_.at(number), usable(number, demand));
  }
  // Bytes of a machine that its devices share may still not suffice.
  if (!scheduler_.inventory_.place(demand, count)) return false;
  for (const int64_t number : victims) {
    RunningJob& victim = scheduler_.running_.at(number);
    pool_.by_end.erase({victim.ends_by, number});
    const auto same = pool_.preemptible.find(victim.priority);
    same->second.erase(number);
    if (same->second.empty()) pool_.preemptible.erase(same);
    victim.ending = true;
    victim.ends_by = std::min(victim.ends_by, now_ + victim.stop_time);
    pool_.by_end.insert({victim.ends_by, number});
    pool_.ending.insert(number);
    decisions_.preemptions.push_back({number, job.number});
  }
  made.victims = victims;
  return true;
}

std::vector<int64_t> Round::choose_victims(int priority, const Demand& demand,
                                           int64_t missing) const {
  struct Candidate {
    int64_t count;
    int priority;
    absl::Duration began;
    int64_t number;
  };
  std::vector<Candidate> candidates;
  for (const auto& [lower, numbers] : pool_.preemptible) {
    if (lower >= priority) break;
    for (const int64_t number : numbers) {
      const auto count = static_cast<int64_t>(usable(number, demand).size());
      if (count == 0) continue;
      candidates.push_back({count, lower, scheduler_.running_.at(number).began, number});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.priority, -a.began, -a.number) <
           std::tuple(b.priority, -b.began, -b.number);
  });
  // The largest first tells how few can do; which ones is then chosen in order, as long as the
  // largest of those behind make up for what is still missing.
  std::multiset<int64_t, std::greater<>> behind;
  for (const Candidate& candidate : candidates) behind.insert(candidate.count);
  const auto largest = [&behind](int64_t picks) {
    int64_t sum = 0;
    for (auto it = behind.begin(); it != behind.end() && picks > 0; ++it, --picks) sum += *it;
    return sum;
  };
  int64_t picks = 1;
  while (largest(picks) < missing) {
    if (++picks > static_cast<int64_t>(candidates.size())) return {};
  }
  std::vector<int64_t> victims;
  for (const Candidate& candidate : candidates) {
    if (picks == 0) break;
    behind.erase(behind.find(candidate.count));
    if (candidate.count + largest(picks - 1) < missing) continue;
    victims.push_back(candidate.number);
    missing -= candidate.count;
    --picks;
  }
  return victims;
}

bool Round::keep(const Demand& demand, int count, bool only_ending, Reservation& made) {
  Inventory& inventory = scheduler_.inventory_;
  std::optional<std::vector<Spot>> spots;
  {
    Supposing supposing(inventory);
    int64_t soon = inventory.room(demand);
    int looks = 0;
    for (const auto& [end, number] : pool_.by_end) {
      if (only_ending && !pool_.ending.contains(number)) continue;
      if (++looks > kMaxEnds) break;
      soon += supposing.is_over(scheduler_.running_.at(number), usable(number, demand));
      if (soon < count) continue;
      spots = inventory.place(demand, count);
      if (!spots) continue;
      made.start_by = std::max(now_, end);
      break;
    }
  }
  if (!spots && only_ending) return false;
  if (!spots) {
    // Nobody knows when: all that it could use.
    const int64_t room = std::min<int64_t>(count, inventory.room(demand));
    if (room > 0) spots = inventory.place(demand, static_cast<int>(room));
  }
  if (!spots) return true;
  promised_.insert(spots->begin(), spots->end());
  std::copy_if(spots->begin(), spots->end(), std::back_inserter(made.spots),
               [&](const Spot& spot) { return inventory.is_free(spot); });
  inventory.take(made.spots, made.bytes_per_rank);
  return true;
}

}  // namespace tessera::server
