#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/follow.h"
#include "client/cli/own_service.h"
#include "client/cpp/client.h"
#include "client/cpp/job_file.h"

namespace tessera::cli {
namespace {

// Long enough for a supervisor to bring a service back.
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::seconds kAttachTimeout{60};

std::vector<std::string> up_arguments(const Session& session, const RunOptions& options,
                                      const v1::JobSpec& spec) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  // As many slots as the job has ranks, on however small a machine.
  const int slots = std::max({cores, 8, spec.parallelism().num_processes()});
  std::vector<std::string> arguments{"--state-dir", session.dir.path().string(),
                                     "up",          "--exit-when-idle",
                                     "--cpu-slots", absl::StrCat(slots)};
  if (!options.trainer.empty()) {
    arguments.insert(arguments.end(), {"--trainer", options.trainer.string()});
  }
  return arguments;
}

ExitCode fail(const Session& session, const absl::Status& status) {
  if (absl::IsCancelled(status)) {
    print_errors(session.terminal, {"interrupted; `tessera list` shows whether the job was taken"});
    return kInterrupted;
  }
  return report_failure(session.terminal, status, session.address());
}

// The file of --events, or nothing where none is wanted. Fails before anything has started.
absl::StatusOr<std::optional<std::ofstream>> open_events(const std::filesystem::path& path) {
  if (path.empty()) return std::nullopt;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write --events ", path.string(), ": ", std::strerror(errno)));
  }
  return file;
}

ExitCode submit_and_follow(const Session& session, Client& client, const v1::JobSpec& spec,
                           std::ostream* events) {
  const auto job = client.submit(spec, make_request_id(), session.stop);
  if (!job.ok()) return fail(session, job.status());
  session.terminal.err << "job " << job->id() << '\n' << std::flush;
  return follow_job(client, *job,
                    {.json = session.json,
                     .events = events,
                     .flags = session.flags,
                     .address = session.address()},
                    session.terminal, session.stop);
}

ExitCode run_here(const Session& session, const RunOptions& options, const JobFile& job,
                  std::ostream* events) {
  if (absl::Status status = session.dir.create(); !status.ok()) return fail(session, status);
  auto impatient = session.connect();
  auto client = session.connect(kPatience);
  if (!impatient.ok()) return fail(session, impatient.status());
  OwnService service(session.dir, session.programs / "tessera",
                     up_arguments(session, options, job.spec));
  ExitCode code = kSucceeded;
  {
    const auto attached = session.dir.attach(session.stop, kAttachTimeout);
    if (!attached.ok()) return fail(session, attached.status());
    if (absl::Status status = service.ensure(*impatient, session.stop); !status.ok()) {
      return fail(session, status);
    }
    code = submit_and_follow(session, *client, job.written, events);
  }
  if (code != kInterrupted) service.wait_until_gone(*impatient, session.stop);
  return code;
}

ExitCode run_anywhere(const Session& session, const RunOptions& options, const JobFile& job,
                      std::ostream* events) {
  if (session.given_address.empty()) return run_here(session, options, job, events);
  auto client = session.connect(kPatience);
  if (!client.ok()) return fail(session, client.status());
  return submit_and_follow(session, *client, job.written, events);
}

}  // namespace

ExitCode run_job(const Session& session, const RunOptions& options) {
  const JobFile job = read_job_file(options.job_file);
  if (!job.errors.empty()) {
    print_errors(session.terminal, job.errors);
    return kUsage;
  }
  auto file = open_events(options.events);
  if (!file.ok()) {
    print_errors(session.terminal, {std::string(file.status().message())});
    return kUsage;
  }
  std::ofstream* events = file->has_value() ? &**file : nullptr;
  const ExitCode code = run_anywhere(session, options, job, events);
  if (events && !events->flush()) {
    print_errors(session.terminal,
                 {absl::StrCat("--events ", options.events.string(), " could not be written")});
    return code == kSucceeded ? kUsage : code;
  }
  return code;
}

}  // namespace tessera::cli
