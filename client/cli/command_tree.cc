#include "client/cli/command_tree.h"

#include <CLI/CLI.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::cli {
namespace {

// CLI11 says the values of IsMember as "TEXT:{cpu,cuda}".
std::vector<std::string> choices_of(const std::string& type_name) {
  const size_t open = type_name.find('{');
  const size_t close = type_name.find('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return absl::StrSplit(type_name.substr(open + 1, close - open - 1), ',');
}

OptionInfo option_of(const CLI::Option& option) {
  OptionInfo info;
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
  const std::string type = option.get_type_name();
  info.takes_value = option.get_items_expected_max() > 0;
  info.value_name =
      info.names.empty() ? option.get_name(true) : type.substr(0, type.find_first_of(": "));
  info.description = option.get_description();
  info.default_value = option.get_default_str();
  info.choices = choices_of(type);
  info.required = option.get_required();
  info.repeats = option.get_items_expected_max() > 1;
  return info;
}

CommandInfo info_of(const CLI::App& app, const std::string& path) {
  CommandInfo info{.path = path,
                   .name = app.get_name(),
                   .description = app.get_description(),
                   .footer = app.get_footer(),
                   .options = {},
                   .commands = {}};
  for (const CLI::Option* option : app.get_options({})) {
    // A group without a name is hidden.
    if (!option->get_group().empty()) info.options.push_back(option_of(*option));
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    info.commands.push_back(info_of(*command, path.empty()
                                                  ? command->get_name()
                                                  : absl::StrCat(path, " ", command->get_name())));
  }
  return info;
}

}  // namespace

CommandInfo command_tree(const CLI::App& app) { return info_of(app, ""); }

std::vector<const CommandInfo*> flat(const CommandInfo& root) {
  std::vector<const CommandInfo*> all;
  for (const CommandInfo& command : root.commands) {
    all.push_back(&command);
    for (const CommandInfo* below : flat(command)) all.push_back(below);
  }
  return all;
}

}  // namespace tessera::cli
