// A child process that can outlive this one: started in a session of its own, known by pid and
// start time, waited for through a pidfd, and adopted again by a later agent.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/agent/file_util.h"

namespace tessera::agent {

// Names a process for ever: pids are used again, but not with the same start time in the same boot.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  std::string boot_id;

  bool operator==(const ProcessId&) const = default;
  // "PID START_TICKS BOOT_ID\n".
  std::string to_string() const;
  static absl::StatusOr<ProcessId> parse(absl::string_view text);
};

struct ProcessOptions {
  std::vector<std::string> command;
  // The whole environment, as NAME=VALUE.
  std::vector<std::string> environment;
  std::filesystem::path directory;
  // Both are appended to. The same path for both is fine.
  std::filesystem::path stdout_path;
  std::filesystem::path stderr_path;
  // A descriptor the child inherits under the same number. -1: none.
  int inherited_fd = -1;
  // Kill the child when the calling thread ends.
  bool dies_with_parent = false;
  // A SIGTERM that is sent to all processes of a job at once must leave it to this one to end it.
  bool ignores_sigterm = false;
  // Make the kernel take the child before others when memory runs out.
  bool first_out_of_memory = false;
  // A Landlock ruleset that the child, and what it starts, is confined to (confinement.h). -1:
  // none.
  int ruleset_fd = -1;
};

// How a process ended. Only a parent learns the status: of an adopted process it is unknown.
struct Exit {
  enum class Kind { kUnknown, kCode, kSignal };
  Kind kind = Kind::kUnknown;
  // The exit code or the signal.
  int value = 0;
};

class Process {
 public:
  // Called with the child's id before it runs anything: if this process dies before `commit`
  // returns, or it returns an error, the child never starts.
  using Commit = std::function<absl::Status(const ProcessId&)>;

  static absl::StatusOr<std::unique_ptr<Process>> start(const ProcessOptions& options,
                                                        const Commit& commit);
  // NOT_FOUND: the process is gone.
  static absl::StatusOr<std::unique_ptr<Process>> adopt(const ProcessId& id);

  // Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }
  pid_t pid() const { return id_.pid; }

  // Signals the process and all others of its session's first group.
  void kill_group(int signal);

  // Set once the process has ended; by then its whole group is dead.
  std::optional<Exit> reap();

 private:
  Process(ProcessId id, UniqueFd pidfd, bool adopted);

  ProcessId id_;
  UniqueFd pidfd_;
  bool adopted_;
  std::optional<Exit> exit_;
};

}  // namespace tessera::agent
