// Scripts with which shells complete the command line.
#pragma once

#include <string>

#include "client/cli/command_tree.h"

namespace tessera::cli {

// What may stand in place of an argument or a value.
enum class Completes { kFile, kDirectory, kJob, kChoice, kNothing };
Completes completes(const OptionInfo& option);

// `shell` is bash, zsh or fish. The script asks `tessera completion jobs` for ids where a job is
// meant, with the --state-dir and --address of the line.
std::string completion_script(const CommandInfo& root, const std::string& shell);

}  // namespace tessera::cli
