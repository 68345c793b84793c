// What ends a job's run besides itself: people who suspend it, and time.
//
// Belongs to the control loop's thread. All that must survive a crash is in the JobRecord.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "server/agents/gangs.h"
#include "server/jobs/job_table.h"

namespace tessera::server {

class Lifetimes {
 public:
  Lifetimes(JobTable& jobs, Gangs& gangs, const Clock& clock);

  // A job was submitted.
  void created(const JobRecord& record);

  // To STOPPING and then SUSPENDED, or to SUSPENDED at once where it holds no devices.
  // FAILED_PRECONDITION: it has ended, is being cancelled, or is out of time.
  absl::Status suspend(JobRecord& record);
  // To QUEUED. One that is not suspended stays as it is. FAILED_PRECONDITION as above.
  absl::Status resume(JobRecord& record);

  // Time limits and deadlines.
  void tick();

 private:
  void miss_deadline(JobRecord& record);

  JobTable& jobs_;
  Gangs& gangs_;
  const Clock& clock_;
  std::set<std::pair<absl::Time, int64_t>> deadlines_;
};

}  // namespace tessera::server
