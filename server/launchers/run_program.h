// Runs a program to its end.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::server {

struct ProgramEnd {
  // 128 + signal where it was killed by one.
  int code = 0;
  std::string output;
  // Standard error.
  std::string errors;
};

// No shell: `arguments` are those of the program, its name, which is looked for in PATH of
// `environment`'s, first; `environment` is the whole one, as NAME=VALUE. It reads nothing.
// DEADLINE_EXCEEDED: it ran for longer than `timeout`, or wrote more than 16 MiB, and was killed
// with its children. NOT_FOUND: there is no such program.
absl::StatusOr<ProgramEnd> run_program(const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& environment,
                                       absl::Duration timeout);

}  // namespace tessera::server
