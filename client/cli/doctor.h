// `tessera doctor`: what this machine has, what is wrong with it for Tessera, and how to mend it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/terminal.h"
#include "client/cpp/client.h"

namespace CLI {
class App;
}

namespace tessera::cli {

struct Finding {
  enum class Level {
    kOk,
    kWarning,  // works, but may not for long, or not well
    kProblem,  // jobs cannot run
  };
  // "trainer", "state directory"; no two have the same.
  std::string name;
  Level level = Level::kOk;
  // What there is, in a line.
  std::string detail;
  // What to do about it. Empty where nothing need be done.
  std::string mend;
};

struct DoctorOptions {
  std::string version;
  // The folder of the programs.
  std::filesystem::path programs;
  // Empty: beside the others.
  std::filesystem::path trainer;
  // Empty: there is no home directory.
  std::filesystem::path state_dir;
  // Where the data cache is. Empty: there is no home directory.
  std::filesystem::path cache_dir;
  // --address; empty: the service of the state directory.
  std::string given_address;
  // A client of that service.
  std::function<absl::StatusOr<Client>()> connect;
  bool json = false;
};

struct DoctorCommand {
  std::string trainer;
};
// `command` must outlive `app`.
void add_doctor(CLI::App& app, DoctorCommand& command);

// In groups, each in an order from what others need to what needs them. Nothing is changed but for
// directories that a service would make, too.
std::vector<Finding> look_at_programs(const DoctorOptions& options);
std::vector<Finding> look_at_directories(const DoctorOptions& options);
std::vector<Finding> look_at_machine();
std::vector<Finding> look_at_limits();
std::vector<Finding> look_at_service(const DoctorOptions& options);

// Prints all of them, with `json` one JSON object a line. kJobFailed where there is a problem.
ExitCode run_doctor(const Terminal& terminal, const DoctorOptions& options);

}  // namespace tessera::cli
