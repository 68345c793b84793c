// `tessera trace` and `tessera collectives`: what the ranks of a job do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cli/commands.h"

namespace tessera::cli {

struct TraceCommand {
  std::string id;
  int num_steps = 1;
  int first_step = 0;      // 0: each rank's next
  std::vector<int> ranks;  // empty: all
  bool no_wait = false;
};
// Asks for the traces, and prints the path of each as it is there.
ExitCode trace_job(const Session& session, const TraceCommand& command);

// Prints what each rank exchanged with the others last, and who waits for whom: asked of ranks that
// run, else as they told it last. `rank`: the exchanges of this one.
ExitCode show_collectives(const Session& session, const std::string& id, std::optional<int> rank);

}  // namespace tessera::cli
