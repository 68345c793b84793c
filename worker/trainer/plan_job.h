// What `tessera-trainer --plan` does: rehearses a job in many ways, and chooses.
#pragma once

#include "tessera/v1/plan.pb.h"

namespace tessera {

// Plans for the world size, the device and the memory of the request, else the job's. On a CPU the
// rates are measured, and kept in data.cache_dir. Throws UserError: the spec breaks a rule, the
// device or the memory is none, the job cannot be run.
v1::Plan plan_job(v1::PlanRequest request);

}  // namespace tessera
