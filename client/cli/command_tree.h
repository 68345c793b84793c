// The commands and options of a program as CLI11 has them, in a plain form: what completion scripts
// and the manual page are made of, so that neither can say anything else than --help.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

struct OptionInfo {
  // With their dashes, long ones first. Empty: an argument that has a place.
  std::vector<std::string> names;
  // Of its value, in capitals; of an argument its own.
  std::string value_name;
  std::string description;
  std::string default_value;
  // The only values there are. Empty: any.
  std::vector<std::string> choices;
  bool takes_value = false;
  bool required = false;
  bool repeats = false;
};

struct CommandInfo {
  // "data inspect"; empty: the program itself.
  std::string path;
  std::string name;
  std::string description;
  std::string footer;
  std::vector<OptionInfo> options;
  std::vector<CommandInfo> commands;
};

CommandInfo command_tree(const CLI::App& app);

// All commands below `root`, each before those below it.
std::vector<const CommandInfo*> flat(const CommandInfo& root);

}  // namespace tessera::cli
