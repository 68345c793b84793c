// `tessera export`: a checkpoint as a Hugging Face directory. No service takes part.
#pragma once

#include <filesystem>
#include <string>

#include "client/cli/terminal.h"

namespace tessera::cli {

struct ExportOptions {
  std::filesystem::path trainer;  // the program that does it
  std::string checkpoint;
  std::string directory;
  std::string model;  // empty: where the job had it
  std::string dtype;  // empty: the job's
};

// Becomes the trainer, whose exit code and errors are the command's: returns only when that cannot
// be run. Call before signals are blocked.
ExitCode export_checkpoint(const Terminal& terminal, const ExportOptions& options);

}  // namespace tessera::cli
