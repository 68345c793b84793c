// Where jobs may read and write on this machine: beneath the directories that its operator allows.
//
// Twice. check() asks before a job starts whether the paths that it names lie there, from a
// descriptor of each directory (openat2), so that a mistake is told by its field. And the programs
// of jobs run under a ruleset of the kernel's (Landlock), from before their first instruction to
// their last, children included: there the kernel looks at the files that names lead to, so no
// link, mount or rename, whenever it is made, gives them another one.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/v1/agent.pb.h"
#include "worker/agent/file_util.h"

namespace tessera::agent {

struct ConfinementOptions {
  // What the operator allows; absolute. Jobs read and write beneath the first, and read beneath the
  // second.
  std::vector<std::filesystem::path> allowed;
  std::vector<std::filesystem::path> readable;
  // The agent's own: where programs and their libraries lie, and where they work.
  std::vector<std::filesystem::path> programs;
  std::vector<std::filesystem::path> work;
};

// Immutable; thread safe.
class Confinement {
 public:
  // INVALID_ARGUMENT: a directory that is allowed cannot be opened. FAILED_PRECONDITION: this
  // kernel cannot confine.
  static absl::StatusOr<std::shared_ptr<const Confinement>> make(const ConfinementOptions& options);

  // INVALID_ARGUMENT naming field, value and rule of the first path that the question names and
  // that leads elsewhere. `field` is set to the field.
  absl::Status check(const v1::Probe& probe, std::string& field) const;

  // For landlock_restrict_self.
  int ruleset() const { return ruleset_.get(); }

 private:
  struct Root {
    std::filesystem::path path;
    UniqueFd fd;
  };

  explicit Confinement(UniqueFd ruleset) : ruleset_(std::move(ruleset)) {}
  bool leads_beneath(const Root& root, const std::filesystem::path& path) const;

  UniqueFd ruleset_;
  std::vector<Root> roots_;
};

}  // namespace tessera::agent
