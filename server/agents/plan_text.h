// What a plan says, in sentences for events and errors.
#pragma once

#include <string>

#include "tessera/v1/plan.pb.h"

namespace tessera::server {

// Why the choice was made, in one sentence. Requires a choice.
std::string describe_choice(const v1::Plan& plan);

// That the job does not fit, and a line for each technique that would make it fit; several lines.
std::string describe_misfit(const v1::Plan& plan);

}  // namespace tessera::server
