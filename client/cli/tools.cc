#include "client/cli/tools.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "client/cli/command_tree.h"
#include "client/cli/completion.h"
#include "client/cli/deadline.h"
#include "client/cli/man_page.h"

namespace tessera::cli {
namespace {

// A person waits with a finger on the tab key.
constexpr std::chrono::milliseconds kTabTime{500};
constexpr size_t kMaxOffered = 200;

// A line an id, newest first. Nothing where the service does not answer at once.
ExitCode print_jobs(const ToolContext& context, const Terminal& terminal) {
  const Deadline deadline(kTabTime);
  auto client = context.connect();
  if (!client.ok()) return kUnreachable;
  const auto jobs = client->list({}, kMaxOffered, deadline.token());
  if (!jobs.ok()) return kUnreachable;
  for (const v1::Job& job : *jobs) terminal.out << job.id() << '\n';
  terminal.out.flush();
  return kSucceeded;
}

}  // namespace

void add_tools(CLI::App& app, Tools& tools) {
  add_import(app, tools.import);
  add_doctor(app, tools.doctor);
  CLI::App* completion =
      app.add_subcommand("completion", "Print a script with which a shell completes this program");
  completion
      ->add_option("SHELL", tools.completion,
                   "bash, zsh or fish; or jobs, for the ids that those scripts ask for")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish", "jobs"}));
  app.add_subcommand("man", "Print the manual page: `tessera man | man -l -` shows it");
}

std::optional<ExitCode> run_tool(const CLI::App& app, const Tools& tools,
                                 const ToolContext& context, const Terminal& terminal) {
  if (app.got_subcommand("import")) return run_import(terminal, tools.import);
  if (app.got_subcommand("doctor")) {
    return run_doctor(terminal, {.version = context.version,
                                 .programs = context.programs,
                                 .trainer = tools.doctor.trainer,
                                 .state_dir = context.state_dir,
                                 .cache_dir = context.cache_dir,
                                 .given_address = context.given_address,
                                 .connect = context.connect,
                                 .json = context.json});
  }
  if (app.got_subcommand("man")) {
    terminal.out << man_page(command_tree(app), context.version) << std::flush;
    return kSucceeded;
  }
  if (!app.got_subcommand("completion")) return std::nullopt;
  if (tools.completion == "jobs") return print_jobs(context, terminal);
  terminal.out << completion_script(command_tree(app), tools.completion) << std::flush;
  return kSucceeded;
}

}  // namespace tessera::cli
