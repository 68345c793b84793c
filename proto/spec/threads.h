// How the ranks of a machine share its cores.
#pragma once

#include <algorithm>

#include "tessera/v1/job.pb.h"

namespace tessera::spec {

// Threads that each of `ranks` ranks on a machine with `cores` cores computes with: as many as the
// job says, else an equal share.
inline int threads_of_rank(const v1::Resources& resources, int ranks, int cores) {
  const int wanted = resources.cpu_threads();
  return wanted > 0 ? wanted : std::max(1, cores / std::max(1, ranks));
}

}  // namespace tessera::spec
