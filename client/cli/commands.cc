#include "client/cli/commands.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/event_printer.h"
#include "client/cli/follow.h"
#include "client/cli/format.h"
#include "client/cli/memory_table.h"
#include "client/cli/result.h"
#include "client/cpp/client.h"
#include "client/cpp/job_file.h"

namespace tessera::cli {
namespace {

std::string describe_data(const v1::Data& data) {
  std::vector<std::string> parts;
  for (const v1::DataSource& source : data.mixture()) {
    parts.push_back(absl::StrCat(source.weight(), " of ", absl::StrJoin(source.path(), " ")));
  }
  return parts.empty() ? absl::StrJoin(data.train(), ", ") : absl::StrJoin(parts, ", ");
}

// For calls that an answer is waited for at the prompt, and for watches.
constexpr std::chrono::seconds kCallPatience{0};
constexpr std::chrono::seconds kWatchPatience{60};
constexpr std::chrono::seconds kSubmitPatience{5};
constexpr std::chrono::seconds kAttachTimeout{30};

// Counts a watcher of a service of this machine as a client, so that the service stays until the
// last event.
std::optional<FileLock> attach(const Session& session) {
  if (!session.given_address.empty()) return std::nullopt;
  auto lock = session.dir.attach(session.stop, kAttachTimeout);
  return lock.ok() ? std::optional<FileLock>(std::move(*lock)) : std::nullopt;
}

std::string format_time(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(time.seconds()),
                          absl::LocalTimeZone());
}

std::string format_age(const google::protobuf::Timestamp& time) {
  return format_duration(static_cast<double>(absl::ToUnixSeconds(absl::Now()) - time.seconds()));
}

std::string why(const v1::Job& job) {
  return clip(job.has_failure() ? job.failure().message() : job.reason(), 60);
}

void print_job(const Session& session, const v1::Job& job) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&rows](const char* name, const std::string& value) {
    if (!value.empty() && value != "-") rows.push_back({name, clip(value, 4096)});
  };
  add("job", job.id());
  add("name", job.spec().name());
  add("state", v1::Job::State_Name(job.state()));
  add("reason", job.has_failure() ? job.failure().message() : job.reason());
  if (job.has_step()) {
    add("step", absl::StrFormat("%d/%d, loss %.4f", job.step().step(), job.step().total_steps(),
                                job.step().loss()));
  }
  if (job.has_checkpoint()) add("checkpoint", job.checkpoint().path());
  if (job.attempt() > 1) add("attempt", absl::StrCat(job.attempt()));
  if (job.preemptions() > 0) add("preempted", absl::StrCat(job.preemptions(), " times"));
  add("project", job.spec().project());
  add("created", format_time(job.create_time()));
  add("started", format_time(job.start_time()));
  add("ended", format_time(job.end_time()));
  add("model", job.spec().model().path());
  add("data", describe_data(job.spec().data()));
  const int wanted = job.spec().parallelism().num_processes();
  const int ranks = job.placements().empty() ? wanted : job.placements_size();
  add("ranks", absl::StrCat(ranks, ranks == wanted ? "" : absl::StrCat(" of ", wanted), " on ",
                            job.spec().resources().device()));
  std::vector<std::string> places;
  for (const v1::Placement& place : job.placements()) {
    places.push_back(absl::StrCat(place.rank(), " on ", place.node(), ":", place.device_index()));
  }
  add("placement", absl::StrJoin(places, ", "));
  add(job.state() == v1::Job::SUCCEEDED ? "result" : "output",
      job.state() == v1::Job::SUCCEEDED ? describe_result(job.spec())
                                        : job.spec().training().output_dir());
  print_lines(session.terminal, format_table(std::move(rows)));
  if (job.failure().has_out_of_memory()) {
    print_lines(session.terminal, out_of_memory_table(job.failure().out_of_memory()));
  }
}

}  // namespace

ExitCode report_call(const Session& session, const absl::Status& status) {
  if (session.stop.stop_requested()) return kInterrupted;
  return report_failure(session.terminal, status, session.address());
}

ExitCode submit_job(const Session& session, const std::filesystem::path& job_file) {
  const JobFile file = read_job_file(job_file);
  if (!file.errors.empty()) {
    print_errors(session.terminal, file.errors);
    return kUsage;
  }
  auto client = session.connect(kSubmitPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto job = client->submit(file.written, make_request_id(), session.stop);
  if (!job.ok()) return report_call(session, job.status());
  session.terminal.out << (session.json ? to_json(*job) : job->id()) << '\n' << std::flush;
  return kSucceeded;
}

ExitCode watch_job(const Session& session, const std::string& id) {
  const auto attached = attach(session);
  auto client = session.connect(kCallPatience);
  if (!client.ok()) return report_call(session, client.status());
  // Finds the service missing at once, and a job by its name.
  const auto job = client->get(id, session.stop);
  if (!job.ok()) return report_call(session, job.status());
  auto watcher = session.connect(kWatchPatience);
  return follow_job(*watcher, *job,
                    {.json = session.json, .flags = session.flags, .address = session.address()},
                    session.terminal, session.stop);
}

ExitCode get_job(const Session& session, const std::string& id) {
  auto client = session.connect(kCallPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto job = client->get(id, session.stop);
  if (!job.ok()) return report_call(session, job.status());
  if (session.json) {
    session.terminal.out << to_json(*job) << '\n' << std::flush;
  } else {
    print_job(session, *job);
  }
  return kSucceeded;
}

ExitCode change_job(const Session& session, const std::string& id, JobCall call) {
  auto client = session.connect(kCallPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto job = ((*client).*call)(id, session.stop);
  if (!job.ok()) return report_call(session, job.status());
  session.terminal.out << (session.json
                               ? to_json(*job)
                               : absl::StrCat(job->id(), " is ", v1::Job::State_Name(job->state())))
                       << '\n'
                       << std::flush;
  return kSucceeded;
}

ExitCode list_jobs(const Session& session, const std::vector<std::string>& states, size_t limit) {
  std::vector<v1::Job::State> wanted;
  for (const std::string& name : states) {
    v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
    if (!v1::Job::State_Parse(absl::AsciiStrToUpper(name), &state) ||
        state == v1::Job::STATE_UNSPECIFIED) {
      print_errors(session.terminal,
                   {absl::StrCat("--state is \"", name,
                                 "\", must be queued, starting, running, restarting, stopping, "
                                 "suspended, cancelling, succeeded, failed or cancelled")});
      return kUsage;
    }
    wanted.push_back(state);
  }
  auto client = session.connect(kCallPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto jobs = client->list(wanted, limit, session.stop);
  if (!jobs.ok()) return report_call(session, jobs.status());
  if (session.json) {
    for (const v1::Job& job : *jobs) session.terminal.out << to_json(job) << '\n';
    session.terminal.out.flush();
    return kSucceeded;
  }
  std::vector<std::vector<std::string>> rows{{"JOB", "STATE", ">STEP", ">LOSS", ">AGE", "REASON"}};
  for (const v1::Job& job : *jobs) {
    const bool stepped = job.has_step();
    rows.push_back({job.id(), v1::Job::State_Name(job.state()),
                    stepped ? absl::StrCat(job.step().step(), "/", job.step().total_steps()) : "-",
                    stepped ? absl::StrFormat("%.4f", job.step().loss()) : "-",
                    format_age(job.create_time()), why(job)});
  }
  print_lines(session.terminal, format_table(std::move(rows)));
  return kSucceeded;
}

ExitCode list_nodes(const Session& session) {
  auto client = session.connect(kCallPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto nodes = client->nodes(session.stop);
  if (!nodes.ok()) return report_call(session, nodes.status());
  if (session.json) {
    for (const v1::Node& node : *nodes) session.terminal.out << to_json(node) << '\n';
    session.terminal.out.flush();
    return kSucceeded;
  }
  std::vector<std::vector<std::string>> rows{
      {"NODE", "STATE", ">DEVICES", ">FREE", ">SEEN", "HOST", "VERSION"}};
  for (const v1::Node& node : *nodes) {
    const auto free = std::count_if(node.devices().begin(), node.devices().end(),
                                    [](const v1::Device& device) { return device.job().empty(); });
    rows.push_back({node.name(), v1::Node::State_Name(node.state()),
                    absl::StrCat(node.devices_size()), absl::StrCat(free),
                    absl::StrCat(format_age(node.last_seen_time()), " ago"), node.hostname(),
                    node.version()});
  }
  print_lines(session.terminal, format_table(std::move(rows)));
  return kSucceeded;
}

ExitCode print_logs(const Session& session, const LogOptions& options) {
  const auto attached = attach(session);
  auto client = session.connect(kCallPatience);
  if (!client.ok()) return report_call(session, client.status());
  const auto job = client->get(options.id, session.stop);
  if (!job.ok()) return report_call(session, job.status());
  auto watcher = session.connect(kWatchPatience);
  const absl::Status status = watcher->watch(
      {.id = job->id(), .follow = options.follow},
      [&](const v1::Event& event) {
        if (!event.has_log() || (options.rank && event.log().rank() != *options.rank)) return;
        session.terminal.out << (session.json ? to_json(event) : clip(describe_event(event), 4096))
                             << '\n'
                             << std::flush;
      },
      session.stop);
  return status.ok() ? kSucceeded : report_call(session, status);
}

}  // namespace tessera::cli
