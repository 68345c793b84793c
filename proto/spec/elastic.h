// Jobs that may go on with fewer ranks than they ask for (parallelism.min_num_processes).
//
// A step takes the same rows whatever the number of ranks: each rank has more microbatches of it.
// So the number of ranks over cp_size is a divisor of what the job asks for. Ranks that share
// shards stay together as far as can be, for memory's sake.
#pragma once

#include <vector>

#include "tessera/v1/job.pb.h"

namespace tessera::spec {

// Numbers of ranks that the job may run with, num_processes first. `spec` has its defaults and
// keeps all rules.
std::vector<int> process_counts(const v1::JobSpec& spec);

// The job on so many ranks. Requires: one of process_counts().
v1::JobSpec with_processes(v1::JobSpec spec, int num_processes);

}  // namespace tessera::spec
