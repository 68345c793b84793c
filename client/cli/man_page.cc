#include "client/cli/man_page.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tessera::cli {
namespace {

// Dashes that are to be copied, backslashes, and dots and quotes at the beginning of a line, which
// would be requests.
std::string roff(const std::string& text) {
  std::string out;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    const bool is_request = line.starts_with('.') || line.starts_with('\'');
    absl::StrAppend(&out, out.empty() ? "" : "\n", is_request ? "\\&" : "",
                    absl::StrReplaceAll(line, {{"\\", "\\e"}, {"-", "\\-"}}));
  }
  return out;
}

void add_option(const OptionInfo& option, std::string& page) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back("\\fB" + roff(name) + "\\fR");
  absl::StrAppend(&page, ".TP\n", absl::StrJoin(names, ", "));
  const std::string value =
      option.choices.empty() ? roff(option.value_name) : roff(absl::StrJoin(option.choices, "|"));
  if (option.takes_value) {
    absl::StrAppend(&page, names.empty() ? "" : " ", "\\fI", value, "\\fR",
                    option.repeats ? " ..." : "");
  }
  absl::StrAppend(&page, "\n", roff(option.description));
  // A path is one of the machine that printed the page.
  if (!option.default_value.empty() && !option.default_value.starts_with('/')) {
    absl::StrAppend(&page, " (default: ", roff(option.default_value), ")");
  }
  absl::StrAppend(&page, option.description.empty() ? "\\&\n" : "\n");
}

std::string synopsis(const CommandInfo& root, const CommandInfo& command) {
  std::string line = absl::StrCat(".B ", roff(root.name), " ", roff(command.path), "\n");
  std::string rest;
  for (const OptionInfo& option : command.options) {
    if (!option.names.empty()) continue;
    absl::StrAppend(&rest, option.required ? " " : " [", roff(option.value_name),
                    option.required ? "" : "]");
  }
  const bool has_options = !command.options.empty();
  return absl::StrCat(line, ".RI ", has_options ? "[ options ]" : "", rest.empty() ? "" : " \"",
                      rest, rest.empty() ? "" : "\"", "\n");
}

}  // namespace

std::string man_page(const CommandInfo& root, const std::string& version) {
  std::string page = absl::StrCat(".TH ", absl::AsciiStrToUpper(root.name), " 1 \"\" \"",
                                  roff(root.name), " ", roff(version), "\" \"User Commands\"\n");
  absl::StrAppend(&page, ".SH NAME\n", roff(root.name), " \\- ", roff(root.description), "\n");
  absl::StrAppend(&page, ".SH SYNOPSIS\n.B ", roff(root.name),
                  "\n[\\fIoptions\\fR] \\fICOMMAND\\fR ...\n");
  absl::StrAppend(&page, ".SH OPTIONS\nThese stand before the command, or behind it.\n");
  for (const OptionInfo& option : root.options) add_option(option, page);
  absl::StrAppend(&page, ".SH COMMANDS\n");
  for (const CommandInfo* command : flat(root)) {
    absl::StrAppend(&page, ".SS ", roff(root.name), " ", roff(command->path), "\n",
                    roff(command->description), ".\n.PP\n", synopsis(root, *command));
    for (const OptionInfo& option : command->options) {
      const bool is_help = !option.names.empty() && option.names[0] == "--help";
      if (!is_help) add_option(option, page);
    }
  }
  absl::StrAppend(&page, ".SH EXIT STATUS\n",
                  roff(absl::StrReplaceAll(root.footer, {{"Exit codes: ", ""}})), "\n");
  absl::StrAppend(
      &page,
      ".SH ENVIRONMENT\n.TP\n.B TESSERA_ADDRESS\nThe service, as \\fB\\-\\-address\\fR.\n"
      ".TP\n.B TESSERA_STATE_DIR\nThe state directory, as \\fB\\-\\-state\\-dir\\fR.\n"
      ".TP\n.B NO_COLOR\nNot empty: output has no colours.\n");
  return page;
}

}  // namespace tessera::cli
