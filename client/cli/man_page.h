// The manual page of a program, of its own commands and options.
#pragma once

#include <string>

#include "client/cli/command_tree.h"

namespace tessera::cli {

// In man's macros: `tessera man | man -l -` shows it.
std::string man_page(const CommandInfo& root, const std::string& version);

}  // namespace tessera::cli
