// Follows a job to its end and tells how it went.
#pragma once

#include <ostream>
#include <stop_token>
#include <string>

#include "client/cli/terminal.h"
#include "client/cpp/client.h"

namespace tessera::cli {

struct FollowOptions {
  bool json = false;
  // Gets every event too, as one line of ProtoJSON. Null: nobody does.
  std::ostream* events = nullptr;
  // Flags that bring a later command to the same service, with a leading blank, as in "
  // --state-dir /x".
  std::string flags;
  // As in the error when the service is lost.
  std::string address;
};

// Prints the job's events from the first one on, and at its end the result and the memory by
// owner. A stop request leaves the job running and says how to come back.
ExitCode follow_job(Client& client, const v1::Job& job, const FollowOptions& options,
                    const Terminal& terminal, std::stop_token stop);

}  // namespace tessera::cli
