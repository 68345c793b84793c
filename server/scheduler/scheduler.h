// Which queued jobs start now, on which devices, and which running ones make room for them. Pure:
// no I/O, no clock of its own; what it decides is a function of what it was told, in that order.
//
// The queue is gone through by priority, then by what projects had of the devices beside their
// weight (fair_share.h), then in order of submission. Gangs are all or nothing.
//
// The first job that has to wait gets a reservation: the devices on which it can start soonest, by
// the times at which running jobs are over in any case. What is free of them is kept for it. A
// later job may use them only where it is over itself by then, so that it never puts the
// reservation off. Where no time is known the free devices that the first job could use are all
// kept. A job that wants another model of device may have a reservation besides; it gives way to
// those before it.
//
// A job that cannot start has jobs of lower priority stopped, where they are preemptible and it
// could start then: the fewest that make room; among those of lowest priority, then those that ran
// for the least time. As priorities are compared strictly, who was stopped never stops the other in
// turn. The devices are reserved as above until they are free.
//
// A job with several sizes starts with the first of them that there is room for. A job that its
// project's quota stops, that may not start yet, or that the present nodes could never hold, holds
// up nobody.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/fair_share.h"
#include "server/scheduler/inventory.h"
#include "server/scheduler/job_queue.h"
#include "server/scheduler/views.h"

namespace tessera::server {

class Scheduler {
 public:
  // Shapes of jobs that a round looks at in vain, for each kind of device, before the rest of the
  // queue has to wait for the next one.
  static constexpr int kMaxLooks = 1024;
  // Jobs that devices are kept for, for each kind.
  static constexpr size_t kMaxReservations = 64;

  explicit Scheduler(absl::Duration fair_share_half_life) : shares_(fair_share_half_life) {}

  // Nodes that take work. A node that comes back has the devices taken that jobs hold there.
  void put_node(const NodeView& view);
  void remove_node(const std::string& name);

  FairShare& shares() { return shares_; }
  const FairShare& shares() const { return shares_; }

  // A job is queued, runs, or is neither: each call replaces what was known of it.
  void queue(const QueuedJob& job, absl::Duration now);
  void run(const RunningJob& job, absl::Duration now);
  void remove(int64_t number, absl::Duration now);

  // Decides, and takes what it decides as done.
  Decisions round(absl::Duration now);

  // As of the last round. Requires: the job is queued.
  Waiting why(int64_t number) const;
  // Queued jobs in order, at most `limit`.
  std::vector<int64_t> order(size_t limit, absl::Duration now) const;
  size_t num_queued() const { return queue_.size(); }
  const std::map<int64_t, RunningJob>& running() const { return running_; }

 private:
  friend class Round;

  // Running jobs of a kind of device.
  struct Pool {
    // Those that are over some time in any case.
    std::set<std::pair<absl::Duration, int64_t>> by_end;
    std::map<int, std::set<int64_t>> preemptible;  // by priority; not those that are ending
    std::set<int64_t> ending;
  };
  // Devices that are kept for a job, in a round and for those who ask why afterwards.
  struct Reservation {
    int64_t number = 0;
    absl::Duration start_by = absl::InfiniteDuration();
    std::vector<int64_t> victims;
    // Free now.
    std::vector<Spot> spots;
    int64_t bytes_per_rank = 0;
  };

  void hold(const RunningJob& job, absl::Duration now);
  void let_go(const RunningJob& job, absl::Duration now);

  Inventory inventory_;
  JobQueue queue_;
  FairShare shares_;
  std::map<int64_t, RunningJob> running_;
  std::map<std::string, Pool> pools_;
  // Which job holds each device; of nodes that are away, too.
  std::map<std::string, std::map<int, int64_t>> holders_;
  // Of the last round, by kind, in order of the queue.
  std::map<std::string, std::vector<Reservation>> reservations_;
};

}  // namespace tessera::server
