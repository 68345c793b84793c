// What ranks held, beside what was predicted.
#pragma once

#include "server/agents/nodes.h"
#include "server/jobs/queries.h"

namespace tessera::server {

// Whether every rank of the attempt has told of its memory after its first steps.
bool saw_first_steps(const JobRecord& record);

// The most that a rank of the attempt has held so far; device_ratio is not set. Requires a
// rehearsal, and a gang whose nodes are known.
v1::PeakMeasured measured_peak(const JobRecord& record, const Nodes& nodes);

}  // namespace tessera::server
