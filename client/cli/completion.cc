#include "client/cli/completion.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tessera::cli {
namespace {

// For a text between single quotes.
std::string in_quotes(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"\n", " "}});
}

std::string first_sentence(const std::string& text) {
  return text.substr(0, text.find_first_of(";\n"));
}

// A name for a shell's function or case: "data_inspect".
std::string flat_name(const std::string& path) { return absl::StrReplaceAll(path, {{" ", "_"}}); }

std::vector<std::string> names_of(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const OptionInfo& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<std::string> commands_of(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const CommandInfo& below : command.commands) names.push_back(below.name);
  return names;
}

const OptionInfo* argument_of(const CommandInfo& command) {
  const auto it = std::ranges::find_if(
      command.options, [](const OptionInfo& option) { return option.names.empty(); });
  return it == command.options.end() ? nullptr : &*it;
}

// ---- bash

std::string bash_reply(const OptionInfo& option) {
  switch (completes(option)) {
    case Completes::kChoice:
      return absl::StrCat("COMPREPLY=($(compgen -W '", absl::StrJoin(option.choices, " "),
                          "' -- \"$cur\"))");
    case Completes::kJob:
      return "COMPREPLY=($(compgen -W \"$(_tessera_jobs)\" -- \"$cur\"))";
    case Completes::kDirectory:
      return "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\"))";
    case Completes::kFile:
      return "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))";
    case Completes::kNothing:
      return "COMPREPLY=()";
  }
  return "";
}

// The cases of a bash script, by what they are asked about.
struct BashCases {
  std::string paths;        // a word that names a command
  std::string with_values;  // a word that takes the next one along
  std::string values;       // the word before the one to complete
  std::string words;        // the command of the one to complete
};

void bash_options(const CommandInfo& command, const std::string& path, BashCases& cases) {
  for (const OptionInfo& option : command.options) {
    if (option.names.empty() || !option.takes_value) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) {
      patterns.push_back(absl::StrCat("'", path, ":", name, "'"));
    }
    const std::string pattern = absl::StrCat("      ", absl::StrJoin(patterns, " | "), ") ");
    absl::StrAppend(&cases.values, pattern, bash_reply(option), "; return ;;\n");
    absl::StrAppend(&cases.with_values, pattern, "((i++)) ;;\n");
  }
}

void bash_words(const CommandInfo& command, const CommandInfo& root, BashCases& cases) {
  std::vector<std::string> names = names_of(command);
  if (&command != &root) {
    const std::vector<std::string> common = names_of(root);
    names.insert(names.end(), common.begin(), common.end());
  }
  const OptionInfo* argument = argument_of(command);
  std::string plain = argument == nullptr ? "COMPREPLY=()" : bash_reply(*argument);
  if (!command.commands.empty()) {
    plain = absl::StrCat("COMPREPLY=($(compgen -W '", absl::StrJoin(commands_of(command), " "),
                         "' -- \"$cur\"))");
  }
  absl::StrAppend(&cases.words, "    '", command.path, "')\n      if [[ $cur == -* ]]; then\n",
                  "        COMPREPLY=($(compgen -W '", absl::StrJoin(names, " "),
                  "' -- \"$cur\"))\n      else\n        ", plain, "\n      fi ;;\n");
}

constexpr char kBashHead[] = R"(# bash completion of tessera: made by `tessera completion bash`.
# source <(tessera completion bash), or a file in ~/.local/share/bash-completion/completions.
# shellcheck shell=bash disable=SC2207

_tessera_jobs() {
  "${COMP_WORDS[0]}" "${service[@]}" completion jobs 2>/dev/null
}

_tessera() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path='' word i
  local service=()
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case $word in
      --state-dir | --address) service+=("$word" "${COMP_WORDS[++i]}"); continue ;;
    esac
)";

std::string bash_script(const CommandInfo& root) {
  BashCases cases;
  bash_words(root, root, cases);
  for (const CommandInfo* command : flat(root)) {
    const size_t cut = command->path.rfind(' ');
    const std::string parent = cut == std::string::npos ? "" : command->path.substr(0, cut);
    absl::StrAppend(&cases.paths, "      '", parent, ":", command->name, "') path='", command->path,
                    "' ;;\n");
    bash_options(*command, command->path, cases);
    bash_words(*command, root, cases);
  }
  // Options of the program may stand behind a command, too.
  BashCases common;
  bash_options(root, "", common);
  return absl::StrCat(kBashHead, "    case $path:$word in\n", cases.paths, cases.with_values,
                      "    esac\n  done\n  case $path:$prev in\n", cases.values,
                      "  esac\n  case :$prev in\n", common.values, "  esac\n  case $path in\n",
                      cases.words, "  esac\n}\n\ncomplete -F _tessera tessera\n");
}

// ---- zsh

std::string zsh_action(const OptionInfo& option) {
  switch (completes(option)) {
    case Completes::kChoice:
      return absl::StrCat("(", absl::StrJoin(option.choices, " "), ")");
    case Completes::kJob:
      return "_tessera_jobs";
    case Completes::kDirectory:
      return "_files -/";
    case Completes::kFile:
      return "_files";
    case Completes::kNothing:
      return " ";
  }
  return "";
}

std::string zsh_text(const std::string& text) {
  return absl::StrReplaceAll(in_quotes(first_sentence(text)),
                             {{"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

void zsh_option(const OptionInfo& option, std::string& out) {
  const std::string value =
      option.takes_value ? absl::StrCat(":", option.value_name, ":", zsh_action(option)) : "";
  if (option.names.empty()) {
    absl::StrAppend(&out, "    '", option.repeats ? "*" : (option.required ? "" : ":"), ":",
                    option.value_name, ":", zsh_action(option), "' \\\n");
    return;
  }
  for (const std::string& name : option.names) {
    absl::StrAppend(&out, "    '", option.repeats ? "*" : "", name, "[",
                    zsh_text(option.description), "]", value, "' \\\n");
  }
}

void zsh_command(const CommandInfo& command, const CommandInfo& root, std::string& out) {
  absl::StrAppend(&out, "_tessera_", flat_name(command.path), "() {\n  local -a commands\n",
                  "  local context state state_descr line\n  typeset -A opt_args\n",
                  "  _arguments -C \\\n");
  for (const OptionInfo& option : command.options) zsh_option(option, out);
  if (&command != &root) {
    for (const OptionInfo& option : root.options) {
      const bool is_own = std::ranges::any_of(
          command.options, [&](const OptionInfo& own) { return own.names == option.names; });
      if (!is_own) zsh_option(option, out);
    }
  }
  if (command.commands.empty()) {
    absl::StrAppend(&out, "    && return\n}\n\n");
    return;
  }
  absl::StrAppend(&out, "    '1: :->command' '*:: :->rest' && return\n  case $state in\n",
                  "    command)\n      commands=(\n");
  for (const CommandInfo& below : command.commands) {
    absl::StrAppend(&out, "        '", below.name, ":", zsh_text(below.description), "'\n");
  }
  absl::StrAppend(&out, "      )\n      _describe command commands ;;\n",
                  "    rest) case $words[1] in\n");
  for (const CommandInfo& below : command.commands) {
    absl::StrAppend(&out, "      ", below.name, ") _tessera_", flat_name(below.path), " ;;\n");
  }
  absl::StrAppend(&out, "    esac ;;\n  esac\n}\n\n");
}

std::string zsh_script(const CommandInfo& root) {
  std::string out =
      "#compdef tessera\n"
      "# zsh completion of tessera: made by `tessera completion zsh`; a file _tessera in "
      "$fpath.\n\n"
      "_tessera_jobs() {\n"
      "  local -a jobs service\n"
      "  (( $+opt_args[--state-dir] )) && service+=(--state-dir $opt_args[--state-dir])\n"
      "  (( $+opt_args[--address] )) && service+=(--address $opt_args[--address])\n"
      "  jobs=(${(f)\"$(tessera $service completion jobs 2>/dev/null)\"})\n"
      "  compadd -a jobs\n}\n\n";
  for (const CommandInfo* command : flat(root)) zsh_command(*command, root, out);
  zsh_command(root, root, out);
  return absl::StrCat(out, "_tessera_ \"$@\"\n");
}

// ---- fish

void fish_option(const OptionInfo& option, const std::string& condition, std::string& out) {
  absl::StrAppend(&out, "complete -c tessera", condition);
  for (const std::string& name : option.names) {
    absl::StrAppend(&out, name.starts_with("--") ? " -l " : " -s ",
                    name.substr(name.find_first_not_of('-')));
  }
  const Completes kind = completes(option);
  if (option.takes_value && kind == Completes::kFile) {
    absl::StrAppend(&out, option.names.empty() ? " -F" : " -r -F");
  } else if (option.takes_value) {
    absl::StrAppend(&out, option.names.empty() ? " -f" : " -x");
  }
  if (kind == Completes::kChoice) {
    absl::StrAppend(&out, " -a '", absl::StrJoin(option.choices, " "), "'");
  } else if (option.takes_value && kind == Completes::kJob) {
    absl::StrAppend(&out, " -a '(__tessera_jobs)'");
  } else if (option.takes_value && kind == Completes::kDirectory) {
    absl::StrAppend(&out, " -a '(__fish_complete_directories)'");
  }
  absl::StrAppend(&out, " -d '", in_quotes(first_sentence(option.description)), "'\n");
}

std::string fish_script(const CommandInfo& root) {
  std::string out =
      "# fish completion of tessera: made by `tessera completion fish`; a file\n"
      "# ~/.config/fish/completions/tessera.fish.\n"
      "function __tessera_jobs\n"
      "  set -l words (commandline -opc)\n"
      "  set -l service\n"
      "  for i in (seq 2 (count $words))\n"
      "    contains -- $words[$i] --state-dir --address; and test $i -lt (count $words)\n"
      "    and set -a service $words[$i] $words[(math $i + 1)]\n"
      "  end\n"
      "  tessera $service completion jobs 2>/dev/null\n"
      "end\n\ncomplete -c tessera -f\n";
  for (const OptionInfo& option : root.options) fish_option(option, "", out);
  for (const CommandInfo& command : root.commands) {
    absl::StrAppend(&out, "complete -c tessera -n __fish_use_subcommand -a ", command.name, " -d '",
                    in_quotes(first_sentence(command.description)), "'\n");
  }
  for (const CommandInfo* command : flat(root)) {
    std::string condition;
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(command->path, ' '))) {
      absl::StrAppend(&condition, condition.empty() ? "" : "; and ", "__fish_seen_subcommand_from ",
                      word);
    }
    const std::string when = absl::StrCat(" -n '", condition, "'");
    for (const OptionInfo& option : command->options) fish_option(option, when, out);
    for (const CommandInfo& below : command->commands) {
      absl::StrAppend(&out, "complete -c tessera -f", when, " -a ", below.name, " -d '",
                      in_quotes(first_sentence(below.description)), "'\n");
    }
  }
  return out;
}

}  // namespace

Completes completes(const OptionInfo& option) {
  if (!option.choices.empty()) return Completes::kChoice;
  if (!option.takes_value) return Completes::kNothing;
  const auto is_named = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) {
      return option.value_name == name ||
             std::ranges::find(option.names, name) != option.names.end();
    });
  };
  if (is_named({"JOB", "--job"})) return Completes::kJob;
  if (is_named({"--state-dir", "--model", "DIRECTORY", "CHECKPOINT", "--tokenizer"})) {
    return Completes::kDirectory;
  }
  const bool is_file = is_named({"JOB_FILE", "JOB_OR_DATA", "CONFIG", "--accelerate", "--output",
                                 "--train", "--eval", "--events", "--trainer"});
  return is_file ? Completes::kFile : Completes::kNothing;
}

std::string completion_script(const CommandInfo& root, const std::string& shell) {
  if (shell == "zsh") return zsh_script(root);
  if (shell == "fish") return fish_script(root);
  return bash_script(root);
}

}  // namespace tessera::cli
