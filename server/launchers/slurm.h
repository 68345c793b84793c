// launcher: slurm. Allocations are batch jobs that `sbatch` submits; their script runs one agent a
// node with `srun`. `squeue` tells what became of them, `scancel` ends them.
//
// Slurm's own programs are run with argument vectors; the script is made of constant text and of
// words that shell_word() quotes. All batch jobs of a name wait for each other
// (--dependency=singleton): were one submitted twice, the two would never run at the same time.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/launchers/launcher.h"
#include "server/launchers/run_program.h"

namespace tessera::server {

struct SlurmOptions {
  // A directory that all machines see under the same path, the coordinator's included: scripts,
  // logs and tokens of allocations are there, in a directory each.
  std::filesystem::path directory;
  // tessera-agent, where the machines of the cluster see it. tessera-trainer is beside it.
  std::filesystem::path agent;
  // Where an agent keeps its state on its machine.
  std::filesystem::path scratch = "/tmp";
  // Empty: Slurm's default.
  std::string partition;
  // Further arguments of sbatch, one each.
  std::vector<std::string> arguments;
  int devices_per_node = 8;
  int cpus_per_device = 1;
  // Whose allocations are this coordinator's: their names begin with "tessera-OWNER-".
  std::string owner;
  // Environment of sbatch, squeue, scancel and sinfo, as NAME=VALUE.
  std::vector<std::string> environment;
};

// Reads --slurm-args FILE: an argument of sbatch a line; lines that begin with '#', and empty ones,
// are none. INVALID_ARGUMENT: a line is no --option, or sets what is the launcher's own.
absl::StatusOr<std::vector<std::string>> read_sbatch_arguments(const std::filesystem::path& path);

// The word as one word of a POSIX shell.
std::string shell_word(absl::string_view word);

// Lines of `squeue --format` below, oldest job first. Lines of other owners are left out.
inline constexpr absl::string_view kSqueueFormat = "%i|%T|%r|%D|%N|%j";
std::vector<ClusterJob> parse_squeue(absl::string_view text, absl::string_view prefix);

class SlurmLauncher final : public Launcher {
 public:
  // INVALID_ARGUMENT names the option of tesserad that is wrong.
  static absl::StatusOr<std::unique_ptr<Launcher>> make(SlurmOptions options,
                                                        std::shared_ptr<Enrolment> enrolment);

  std::string kind() const override { return "slurm"; }
  int max_devices_per_node() const override { return options_.devices_per_node; }
  absl::StatusOr<std::string> submit(const LaunchRequest& request) override;
  absl::StatusOr<std::vector<ClusterJob>> list() override;
  absl::StatusOr<bool> is_gone(const ClusterJob& job) override;
  absl::Status remove(const ClusterJob& job) override;

 private:
  SlurmLauncher(SlurmOptions options, std::shared_ptr<Enrolment> enrolment)
      : options_(std::move(options)), enrolment_(std::move(enrolment)) {}

  std::filesystem::path directory_of(const std::string& name) const {
    return options_.directory / name;
  }
  absl::StatusOr<std::string> call(const std::vector<std::string>& arguments) const;
  // Of these names alone, where there is one.
  absl::StatusOr<std::vector<ClusterJob>> queue(const std::string& name) const;
  absl::Status write_files(const LaunchRequest& request) const;
  std::string script(const LaunchRequest& request, bool with_tls) const;
  std::vector<std::string> sbatch(const LaunchRequest& request) const;
  // The end of what the batch job printed, for a reason; "" where there is nothing.
  std::string last_words(const std::string& name) const;

  const SlurmOptions options_;
  const std::shared_ptr<Enrolment> enrolment_;
};

}  // namespace tessera::server
