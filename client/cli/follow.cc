#include "client/cli/follow.h"

#include "absl/strings/str_cat.h"
#include "client/cli/event_printer.h"
#include "client/cli/progress.h"
#include "client/cli/result.h"

namespace tessera::cli {
namespace {

ExitCode exit_code_of(v1::Job::State state) {
  if (state == v1::Job::SUCCEEDED) return kSucceeded;
  return state == v1::Job::CANCELLED ? kJobCancelled : kJobFailed;
}

std::string why_it_ended(const v1::StateChange& change) {
  if (change.has_failure()) return change.failure().message();
  return change.reason().empty() ? "no reason was given" : change.reason();
}

void print_summary(const v1::Job& job, const Progress& progress, const Terminal& terminal) {
  if (progress.state() == v1::Job::SUCCEEDED) {
    terminal.out << "result: " << describe_result(job.spec()) << '\n';
  }
  for (const std::string& line : progress.memory_table()) terminal.out << line << '\n';
  terminal.out.flush();
}

}  // namespace

ExitCode follow_job(Client& client, const v1::Job& job, const FollowOptions& options,
                    const Terminal& terminal, std::stop_token stop) {
  Progress progress;
  const auto printer =
      options.json ? make_json_printer(terminal.out) : make_text_printer(terminal, progress);
  const auto copy = options.events ? make_json_printer(*options.events) : nullptr;
  const absl::Status status = client.watch(
      {.id = job.id()},
      [&](const v1::Event& event) {
        progress.add(event);
        printer->print(event);
        if (copy) copy->print(event);
      },
      stop);
  printer->finish();
  if (stop.stop_requested() && !is_terminal(progress.state())) {
    terminal.err << "job " << job.id() << " goes on; come back with `tessera" << options.flags
                 << " watch " << job.id() << "`, stop it with `tessera" << options.flags
                 << " cancel " << job.id() << "`\n"
                 << std::flush;
    return kInterrupted;
  }
  if (!status.ok()) return report_failure(terminal, status, options.address);
  if (!is_terminal(progress.state())) {
    print_errors(terminal, {absl::StrCat("the events of job ", job.id(), " stop before its end")});
    return kUnreachable;
  }
  if (!options.json) print_summary(job, progress, terminal);
  const ExitCode code = exit_code_of(progress.state());
  if (code == kJobFailed) {
    print_errors(terminal,
                 {absl::StrCat("job ", job.id(), " failed: ", why_it_ended(progress.change()))});
  } else if (code == kJobCancelled) {
    print_errors(terminal, {absl::StrCat("job ", job.id(), " was cancelled")});
  }
  return code;
}

}  // namespace tessera::cli
