// What `tessera-trainer --plan` does: rehearses a job in many ways, and chooses.
#pragma once

#include <filesystem>

#include "tessera/v1/plan.pb.h"
#include "worker/data/dataset.h"

namespace tessera {

// A binary PlanRequest, or ProtoJSON where the name ends in ".json" (its relative paths are
// relative to the file). Throws UserError: unreadable or malformed.
v1::PlanRequest read_plan_request(const std::filesystem::path& path);

// Plans for the world size, the device and the memory of the request, else the job's. On a CPU the
// rates are measured, and kept in data.cache_dir. Throws UserError: the spec breaks a rule, the
// device or the memory is none, the job cannot be run.
v1::Plan plan_job(v1::PlanRequest request);

// Gives up reading data for a rehearsal, by throwing UserError, some seconds from now: rows are
// then taken to be full.
Reports impatient_reports(double seconds);

}  // namespace tessera
