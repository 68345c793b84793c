// Plans for people.
#pragma once

#include <string>

#include "client/cli/terminal.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::cli {

// The job as written, by owner; whether it fits the kinds of devices that are present; what each
// technique would save; and what memory.auto would take.
void print_plan(const Terminal& terminal, const std::string& job,
                const v1::PlanJobResponse& response);

}  // namespace tessera::cli
