// `tessera up`: a coordinator and an agent on this machine, for as long as the command runs.
#pragma once

#include <filesystem>
#include <stop_token>
#include <string>

#include "client/cli/state_dir.h"
#include "client/cli/terminal.h"

namespace tessera::cli {

struct UpOptions {
  // Where tesserad and tessera-agent are.
  std::filesystem::path programs;
  std::string http = "127.0.0.1:0";
  // Empty or 0: the agent's default.
  std::string node;
  std::filesystem::path trainer;
  int cpu_slots = 0;
  // End when no job is unfinished and no client is at work.
  bool exit_when_idle = false;
};

// Runs until a stop is requested, the service is idle, or it cannot be kept running. Starts either
// program again when it ends. Stopping ends all ranks; their jobs go on at the next `up`.
ExitCode run_up(const StateDir& dir, const UpOptions& options, const Terminal& terminal,
                std::stop_token stop);

}  // namespace tessera::cli
