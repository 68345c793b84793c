// What a plan says, in sentences for events and errors.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/v1/plan.pb.h"

namespace tessera::server {

// Why the choice was made, in one sentence. Requires a choice.
std::string describe_choice(const v1::Plan& plan);

// What a rank of the job needs and may have. `peak_ratio`: as Plan's.
std::string describe_need(int64_t peak_bytes, double peak_ratio, int64_t device_memory_bytes);

// That the job does not fit, and a line for each technique that would make it fit; several lines.
std::string describe_misfit(const v1::Plan& plan);

// Of a plan for a job that ran out of memory, and that has no choice: what was looked for, and a
// line for each technique that needs as little but is left to the user; several lines.
std::string describe_exhausted(const v1::Plan& plan);

}  // namespace tessera::server
