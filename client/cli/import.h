// `tessera import`: TRL's and accelerate's configuration as a job file. No service takes part.
#pragma once

#include <string>
#include <vector>

#include "client/cli/terminal.h"

namespace CLI {
class App;
}

namespace tessera::cli {

struct ImportCommand {
  std::string config;
  std::string method;
  std::string accelerate;
  // Empty: standard output.
  std::string output;
  std::string model;
  std::vector<std::string> train;
  std::vector<std::string> eval;
  std::string device;
  std::string reward_server;
};

// `command` must outlive `app`.
void add_import(CLI::App& app, ImportCommand& command);

// Relative paths in the configuration are relative to the working directory, as TRL has them.
// kUsage where a key has no counterpart, a rule is broken, or a file cannot be read or written.
ExitCode run_import(const Terminal& terminal, const ImportCommand& command);

}  // namespace tessera::cli
