// One round over the jobs that want one kind of device.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace tessera::server {

class Round {
 public:
  Round(Scheduler& scheduler, const std::string& kind, absl::Duration now, Decisions& decisions);
  // Gives back what it kept for jobs that wait.
  ~Round();
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  void run();

 private:
  using Reservation = Scheduler::Reservation;

  enum class Outcome {
    kStarted,
    kReserved,  // it waits, and devices are kept for it
    kNoRoom,    // nor is there for any job of its shape that comes later
    kNoQuota,   // nor has its project for any job of its shape
  };
  Outcome try_start(const JobQueue::Entry& entry);
  // Where the job can be now; it may use what is kept for others where it is over in time.
  std::optional<std::vector<Spot>> find_spots(const Demand& demand, int count,
                                              absl::Duration longest);
  void start(const QueuedJob& job, const GangSize& size, std::vector<Spot> spots);

  // For the first job that waits, and for those that wait for jobs that are being stopped.
  bool reserve(const JobQueue::Entry& entry);
  bool makes_room(const QueuedJob& job, const Demand& demand, int count, Reservation& made);
  std::vector<int64_t> choose_victims(int priority, const Demand& demand, int64_t missing) const;
  // Keeps the devices on which the job can start soonest. False: only jobs that are ending count,
  // and they do not suffice.
  bool keep(const Demand& demand, int count, bool only_ending, Reservation& made);

  // Spots of a running job that would do, and are not kept for another.
  std::vector<Spot> usable(int64_t number, const Demand& demand) const;
  bool can_preempt(int priority) const;
  bool is_anything_left(int priority) const;

  // Running jobs whose devices are taken as free for as long as it lives.
  class Supposing;

  Scheduler& scheduler_;
  const std::string kind_;
  const absl::Duration now_;
  Decisions& decisions_;
  Scheduler::Pool& pool_;
  std::vector<Reservation> reservations_;
  // Models that the first job that waits for them wants.
  std::set<std::string> reserved_models_;
  // Devices that a job is to start on, held or free.
  std::set<Spot> promised_;
};

}  // namespace tessera::server
