#include "server/launchers/launcher_flags.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/launchers/token_enrolment.h"
#include "server/security/x509.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxOwner = 16;
constexpr size_t kOwnerBytes = 4;
constexpr int kMaxDevices = 1024;

// The agent that was installed with this program.
fs::path agent_beside() {
  std::error_code failure;
  return fs::read_symlink("/proc/self/exe", failure).parent_path() / "tessera-agent";
}

void add_slurm_flags(CLI::App& app, LauncherFlags& flags) {
  SlurmOptions& slurm = flags.slurm;
  slurm.agent = agent_beside();
  app.add_option("--slurm", slurm.directory,
                 "Take jobs with resources.launcher slurm. DIR is one that all machines see under "
                 "this path: what jobs need to start, and their logs, are kept there")
      ->type_name("DIR");
  app.add_option("--slurm-agent", slurm.agent,
                 "tessera-agent as Slurm's machines see it, tessera-trainer beside it")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--slurm-partition", slurm.partition, "Partition that jobs are submitted to")
      ->type_name("NAME");
  app.add_option("--slurm-args", flags.slurm_args,
                 "File of further arguments of sbatch, one a line, as in --account=research")
      ->type_name("FILE");
  app.add_option("--slurm-devices", slurm.devices_per_node, "Most devices of one machine for a job")
      ->check(CLI::Range(1, kMaxDevices))
      ->capture_default_str();
  app.add_option("--slurm-cpus", slurm.cpus_per_device, "CPUs to ask for with each device")
      ->check(CLI::Range(1, kMaxDevices))
      ->capture_default_str();
  app.add_option("--slurm-scratch", slurm.scratch,
                 "Directory of each machine for what its agent keeps while a job runs")
      ->type_name("DIR")
      ->capture_default_str();
}

void add_kubernetes_flags(CLI::App& app, LauncherFlags& flags) {
  KubernetesOptions& kubernetes = flags.kubernetes;
  app.add_option("--kubernetes", kubernetes.api,
                 "Take jobs with resources.launcher kubernetes: HOST:PORT of its API server")
      ->type_name("HOST:PORT");
  app.add_option("--kubernetes-namespace", kubernetes.name_space, "Namespace of the Jobs")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--kubernetes-image", kubernetes.image, "Image whose entry point is tessera-agent")
      ->type_name("NAME");
  app.add_option("--kubernetes-token-file", kubernetes.token,
                 "Token of the service account, read anew for each call")
      ->type_name("FILE");
  app.add_option("--kubernetes-ca", kubernetes.ca, "Authority of the API server's certificate")
      ->type_name("FILE");
  app.add_option("--kubernetes-template", kubernetes.pod_template,
                 "JSON that is merged into the pod template: volumes, tolerations, resources ...")
      ->type_name("FILE");
  app.add_option("--kubernetes-devices", kubernetes.devices_per_node, "Most devices of one pod")
      ->check(CLI::Range(1, kMaxDevices))
      ->capture_default_str();
}

bool is_owner(const std::string& owner) {
  return !owner.empty() && owner.size() <= kMaxOwner &&
         std::all_of(owner.begin(), owner.end(), [](char c) {
           return absl::ascii_islower(static_cast<unsigned char>(c)) ||
                  absl::ascii_isdigit(static_cast<unsigned char>(c));
         });
}

}  // namespace

void add_launcher_flags(CLI::App& app, LauncherFlags& flags) {
  add_slurm_flags(app, flags);
  add_kubernetes_flags(app, flags);
  app.add_option("--launcher-coordinator", flags.coordinator,
                 "Where a cluster's machines reach this tesserad: HOST:PORT")
      ->type_name("ADDR");
  app.add_option("--launcher-ca", flags.ca,
                 "Authority of the certificate that they see there (default: our own)")
      ->type_name("FILE");
  app.add_option("--launcher-owner", flags.owner,
                 "Part of the names of what is submitted, by which this coordinator knows its own; "
                 "kept in the database at the first start, and the same from then on (default: a "
                 "random one)")
      ->type_name("NAME");
}

absl::Status check_launcher_owner(const LauncherFlags& flags, const std::string& stored) {
  if (flags.owner.empty()) return absl::OkStatus();
  if (!is_owner(flags.owner)) {
    return absl::InvalidArgumentError(absl::StrCat("--launcher-owner is \"", flags.owner,
                                                   "\", must have 1 to ", kMaxOwner,
                                                   " lower case letters and digits"));
  }
  if (stored.empty() || flags.owner == stored) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--launcher-owner is \"", flags.owner, "\", must be \"", stored,
                   "\" or absent: by that the database names what it has submitted"));
}

absl::StatusOr<std::string> launcher_owner(const LauncherFlags& flags, const StateDir& directory,
                                           Store& store) {
  const std::string stored = store.setting(kOwnerSetting);
  if (absl::Status status = check_launcher_owner(flags, stored); !status.ok()) return status;
  if (!stored.empty()) return stored;
  std::string owner = flags.owner;
  // Where coordinators of before version 5 of the database kept it.
  if (owner.empty()) std::ifstream(directory.path() / "launcher.owner") >> owner;
  if (!is_owner(owner)) owner = random_hex(kOwnerBytes);
  store.set_setting(kOwnerSetting, owner);
  store.commit();
  return owner;
}

absl::StatusOr<std::vector<std::unique_ptr<Launcher>>> make_launchers(
    LauncherFlags flags, const std::string& owner, const StateDir& directory, Security& security,
    std::vector<std::string> environment) {
  std::vector<std::unique_ptr<Launcher>> launchers;
  if (!flags.is_any()) return launchers;
  const fs::path ca = flags.ca.empty() ? directory.path() / "tls" / "ca.pem" : fs::path(flags.ca);
  const auto enrolment =
      make_enrolment({.coordinator = flags.coordinator, .authority = ca}, security);
  if (!enrolment.ok()) return enrolment.status();
  if (!flags.slurm.directory.empty()) {
    SlurmOptions options = std::move(flags.slurm);
    options.owner = owner;
    options.environment = std::move(environment);
    if (!flags.slurm_args.empty()) {
      auto arguments = read_sbatch_arguments(flags.slurm_args);
      if (!arguments.ok()) return arguments.status();
      options.arguments = *std::move(arguments);
    }
    auto slurm = SlurmLauncher::make(std::move(options), *enrolment);
    if (!slurm.ok()) return slurm.status();
    launchers.push_back(*std::move(slurm));
  }
  if (!flags.kubernetes.api.empty()) {
    KubernetesOptions options = std::move(flags.kubernetes);
    options.owner = owner;
    auto kubernetes = KubernetesLauncher::make(std::move(options), *enrolment);
    if (!kubernetes.ok()) return kubernetes.status();
    launchers.push_back(*std::move(kubernetes));
  }
  return launchers;
}

}  // namespace tessera::server
