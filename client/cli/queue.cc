#include "client/cli/queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/event_printer.h"
#include "client/cli/format.h"

namespace tessera::cli {
namespace {

std::string quota(bool is_set, int value) { return is_set ? absl::StrCat(value) : "-"; }

void print_projects(const Session& session, const std::vector<v1::Project>& projects) {
  if (session.json) {
    for (const v1::Project& project : projects) session.terminal.out << to_json(project) << '\n';
    session.terminal.out.flush();
    return;
  }
  std::vector<std::vector<std::string>> rows{
      {"PROJECT", ">WEIGHT", ">DEVICES", ">MOST", ">MEAN", ">QUEUED", ">MOST QUEUED"}};
  for (const v1::Project& project : projects) {
    rows.push_back({project.name(), absl::StrFormat("%g", project.weight()),
                    absl::StrCat(project.devices()),
                    quota(project.has_max_devices(), project.max_devices()),
                    absl::StrFormat("%.2f", project.mean_devices()), absl::StrCat(project.queued()),
                    quota(project.has_max_queued(), project.max_queued())});
  }
  print_lines(session.terminal, format_table(std::move(rows)));
}

}  // namespace

ExitCode show_queue(const Session& session, int limit) {
  auto client = session.connect();
  if (!client.ok()) return report_call(session, client.status());
  const auto queue = client->queue(limit, session.stop);
  if (!queue.ok()) return report_call(session, queue.status());
  if (session.json) {
    for (const v1::QueueEntry& entry : queue->entries()) {
      session.terminal.out << to_json(entry) << '\n';
    }
    session.terminal.out.flush();
    return kSucceeded;
  }
  std::vector<std::vector<std::string>> rows{
      {">#", "JOB", "PROJECT", ">PRIORITY", ">RANKS", ">AGE", "STARTS BY", "REASON"}};
  for (const v1::QueueEntry& entry : queue->entries()) {
    const auto age = absl::Now() - absl::FromUnixSeconds(entry.create_time().seconds());
    const std::string start_by =
        entry.has_start_by_time()
            ? absl::FormatTime("%H:%M:%S", absl::FromUnixSeconds(entry.start_by_time().seconds()),
                               absl::LocalTimeZone())
            : "-";
    rows.push_back(
        {absl::StrCat(rows.size()), entry.job_id(), entry.project(), absl::StrCat(entry.priority()),
         absl::StrCat(entry.num_processes(), " ", entry.device()),
         format_duration(absl::ToDoubleSeconds(age)), start_by, clip(entry.reason(), 100)});
  }
  print_lines(session.terminal, format_table(std::move(rows)));
  if (queue->num_queued() > queue->entries_size()) {
    print_lines(session.terminal,
                {absl::StrCat("and ", queue->num_queued() - queue->entries_size(), " more")});
  }
  return kSucceeded;
}

ExitCode list_projects(const Session& session) {
  auto client = session.connect();
  if (!client.ok()) return report_call(session, client.status());
  const auto projects = client->projects(session.stop);
  if (!projects.ok()) return report_call(session, projects.status());
  print_projects(session, *projects);
  return kSucceeded;
}

ExitCode set_project(const Session& session, const ProjectChange& change) {
  auto client = session.connect();
  if (!client.ok()) return report_call(session, client.status());
  const auto projects = client->projects(session.stop);
  if (!projects.ok()) return report_call(session, projects.status());
  const auto known = std::find_if(projects->begin(), projects->end(), [&](const auto& project) {
    return project.name() == change.name;
  });
  v1::Project project;
  if (known != projects->end()) project = *known;
  project.set_name(change.name);
  if (change.weight) project.set_weight(*change.weight);
  if (change.max_devices) {
    *change.max_devices < 0 ? project.clear_max_devices()
                            : project.set_max_devices(*change.max_devices);
  }
  if (change.max_queued) {
    *change.max_queued < 0 ? project.clear_max_queued()
                           : project.set_max_queued(*change.max_queued);
  }
  const auto set = client->set_project(project, session.stop);
  if (!set.ok()) return report_call(session, set.status());
  print_projects(session, {*set});
  return kSucceeded;
}

}  // namespace tessera::cli
