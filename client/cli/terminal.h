// Where a command writes: results to `out`, all else to `err`.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera::cli {

// What the environment and the terminals of the process say; read once, in main.
struct Terminal {
  std::ostream& out;
  std::ostream& err;
  bool out_is_tty = false;
  bool colour = false;
  // Columns of `out`, where it is a terminal.
  size_t width = 80;

  // `text` between the codes of a colour ("31"), where colours are wanted.
  std::string paint(const std::string& text, const char* code) const;
};

// Documented in --help. Others follow the shell: 130 after Ctrl-C.
enum ExitCode {
  kSucceeded = 0,
  kJobFailed = 1,
  kUsage = 2,
  kJobCancelled = 3,
  kUnreachable = 4,
  kInterrupted = 130,
};

// One "error: ..." line each.
// A line each to standard output.
void print_lines(const Terminal& terminal, const std::vector<std::string>& lines);

void print_errors(const Terminal& terminal, const std::vector<std::string>& errors);

// Prints what a call to the service at `address` failed for, and returns the exit code for it.
ExitCode report_failure(const Terminal& terminal, const absl::Status& status,
                        const std::string& address);

}  // namespace tessera::cli
