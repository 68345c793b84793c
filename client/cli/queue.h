// `tessera queue` and `tessera projects`: who comes next, and who may have how much.
#pragma once

#include "client/cli/commands.h"

namespace tessera::cli {

ExitCode show_queue(const Session& session, int limit);
ExitCode list_projects(const Session& session);

// What is not given stays as it is. With a negative number there is no quota any more.
struct ProjectChange {
  std::string name;
  std::optional<double> weight;
  std::optional<int> max_devices;
  std::optional<int> max_queued;
};
ExitCode set_project(const Session& session, const ProjectChange& change);

}  // namespace tessera::cli
