// One seed: a cluster, jobs, people and faults, and what must hold of all of it.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace tessera::server::simulator {

struct Report {
  absl::Duration simulated;
  int64_t num_events = 0;
  int num_jobs = 0;
  int num_attempts = 0;
  int num_preemptions = 0;
  int num_crashes = 0;       // of the coordinator
  int num_power_losses = 0;  // among them
  // Commits of jobs that power failed in: those that are there nevertheless, whole, and the others.
  int num_kept_commits = 0;
  int num_lost_commits = 0;
  // Attempts that ran with fewer ranks than the job asks for.
  int num_shrunk = 0;
};

// Throws Violation.
Report run_scenario(uint64_t seed, bool verbose);

}  // namespace tessera::server::simulator
