// Starts programs of this service. Linux only.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::cli {

struct Command {
  std::filesystem::path program;
  // Without the program's own name.
  std::vector<std::string> arguments;
  // Standard output and error are appended to this file. Empty: both are this process's standard
  // error.
  std::filesystem::path log;
  // Descriptors to be its standard input and output, the latter in place of `log`. -1: none.
  int input = -1;
  int output = -1;
  // SIGTERM when the thread that started it ends.
  bool ends_with_parent = false;
};

// Starts the program in a session of its own, so that a Ctrl-C at the terminal is not its concern;
// it inherits no other files, and reads nothing but `input`.
absl::StatusOr<pid_t> start_process(const Command& command);

// "exit code 1", "signal 9 (Killed)".
std::string describe_wait_status(int status);

}  // namespace tessera::cli
