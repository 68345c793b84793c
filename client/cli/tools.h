// Commands about the program and the machine, which need no service: import, doctor, completion,
// man.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "client/cli/doctor.h"
#include "client/cli/import.h"
#include "client/cli/terminal.h"

namespace CLI {
class App;
}

namespace tessera::cli {

struct Tools {
  ImportCommand import;
  DoctorCommand doctor;
  // bash, zsh, fish, or jobs: the ids that scripts ask for.
  std::string completion;
};

// What main() knows.
struct ToolContext {
  std::string version;
  std::filesystem::path programs;
  // Absolute; empty: there is none.
  std::filesystem::path state_dir;
  std::filesystem::path cache_dir;
  std::string given_address;
  // A client of the service that the flags name.
  std::function<absl::StatusOr<Client>()> connect;
  bool json = false;
};

// `tools` must outlive `app`.
void add_tools(CLI::App& app, Tools& tools);

// Runs the one of them that was given. None: it was another command.
std::optional<ExitCode> run_tool(const CLI::App& app, const Tools& tools,
                                 const ToolContext& context, const Terminal& terminal);

}  // namespace tessera::cli
