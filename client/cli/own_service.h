// The service behind `tessera run`: one that is there already, or one started for the purpose,
// which ends by itself when no client and no job needs it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/state_dir.h"
#include "client/cpp/client.h"

namespace tessera::cli {

class OwnService {
 public:
  // `program` and `arguments` start an `up --exit-when-idle` on `dir`.
  OwnService(const StateDir& dir, std::filesystem::path program, std::vector<std::string> arguments)
      : dir_(dir), program_(std::move(program)), arguments_(std::move(arguments)) {}

  // Waits for a service that takes jobs, and starts one where none is running. Requires: the
  // caller is attached to `dir`, so that the service stays.
  absl::Status ensure(Client& client, std::stop_token stop);

  // Waits until a service that ends by itself has ended, or has other work. Call it once detached.
  void wait_until_gone(Client& client, std::stop_token stop);

 private:
  absl::Status start();
  // Takes note of the end of the process that start() made; an error when the service could not
  // start.
  absl::Status check_started();

  const StateDir& dir_;
  std::filesystem::path program_;
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
  // Where the log of this start begins.
  std::uintmax_t log_begin_ = 0;
};

}  // namespace tessera::cli
