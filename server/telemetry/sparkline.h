// A job's loss in a few points, read without reading the job.
#pragma once

#include "server/jobs/store.h"
#include "telemetry/history.pb.h"

namespace tessera::server {

// At most kMaxSparklinePoints steps, evenly spread over the job's revisions: the cost does not grow
// with the job. Empty where it has made no step. Throws DatabaseError.
inline constexpr int kMaxSparklinePoints = 40;
Sparkline sparkline(Queries& queries, const JobRecord& record);

}  // namespace tessera::server
