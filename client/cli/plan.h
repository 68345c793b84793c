// `tessera plan`: what memory a job needs, before it runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "client/cli/commands.h"

namespace tessera::cli {

struct PlanCommand {
  std::filesystem::path job_file;
  // What-if, in place of the job's. Empty: the job's.
  std::optional<int> world_size;
  std::string device;
  std::string device_memory;
  std::filesystem::path trainer;
};

// Asks the service of --address, or the one that runs in the state directory, for which nodes there
// are; where there is none, rehearses here with the trainer and starts nothing.
ExitCode plan_job(const Session& session, const PlanCommand& command);

}  // namespace tessera::cli
