// `tessera token`: who may call the service, for its operators.
#pragma once

#include <string>
#include <vector>

#include "client/cli/commands.h"

namespace tessera::cli {

struct TokenOptions {
  // viewer, submitter, operator or agent.
  std::string role;
  std::vector<std::string> projects;
  std::string node;
  std::string description;
  // As in 90s, 30m, 1h or 30d.
  std::string expires = "30d";
};

// Prints the token alone to standard output, for a file or a pipe.
ExitCode create_token(const Session& session, const TokenOptions& options);
ExitCode list_tokens(const Session& session);
ExitCode revoke_token(const Session& session, const std::string& id);

}  // namespace tessera::cli
