// The flags of tesserad that tell it of clusters, and what they make.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "server/jobs/store.h"
#include "server/launchers/kubernetes.h"
#include "server/launchers/launcher.h"
#include "server/launchers/slurm.h"
#include "server/security/security.h"
#include "server/state_dir.h"

namespace tessera::server {

struct LauncherFlags {
  SlurmOptions slurm;
  std::string slurm_args;
  KubernetesOptions kubernetes;
  // As in EnrolmentOptions; the authority's default is the state directory's.
  std::string coordinator;
  std::string ca;
  // Empty: that of the store.
  std::string owner;

  bool is_any() const { return !slurm.directory.empty() || !kubernetes.api.empty(); }
};

void add_launcher_flags(CLI::App& app, LauncherFlags& flags);

// Of Store::setting().
inline constexpr char kOwnerSetting[] = "launcher.owner";

// Whether the flag may be as it is where the store has `stored`, empty: nothing. INVALID_ARGUMENT.
absl::Status check_launcher_owner(const LauncherFlags& flags, const std::string& stored);

// The owner in the names of allocations: one for all who use the store, which keeps the flag's, or
// a random one, from the first start on. INVALID_ARGUMENT: the flag is another one.
absl::StatusOr<std::string> launcher_owner(const LauncherFlags& flags, const StateDir& directory,
                                           Store& store);

// Those that the flags name. INVALID_ARGUMENT names the flag that is wrong. `environment` is for
// Slurm's programs; `security` outlives the launchers.
absl::StatusOr<std::vector<std::unique_ptr<Launcher>>> make_launchers(
    LauncherFlags flags, const std::string& owner, const StateDir& directory, Security& security,
    std::vector<std::string> environment);

}  // namespace tessera::server
