// Where a run's files are. They are all that an agent knows after a restart, so what recovery
// depends on is written atomically.
//
//   runs/JOB/ATTEMPT/         run.pb    the Prepare message
//                             start.pb  the Start message; present once ranks may have been spawned
//                             lease     last contact with the coordinator, as modification time
//   runs/JOB/ATTEMPT/rank-R/  input.pb  TrainerInput
//                             events    TrainerEvents, each after its length, from the trainer
//                             output    standard output and error
//                             commands  FIFO of TrainerCommands, each after its length
//                             pid       ProcessId; absent until the rank was spawned
//                             last.pb   the Finished or Failed event, once the agent has read it
//                             exit.pb   the Failure of a rank that ended without such an event
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/boot_clock.h"
#include "tessera/v1/agent.pb.h"

namespace tessera::agent {

struct RankDirectory {
  std::filesystem::path path;

  std::filesystem::path input() const { return path / "input.pb"; }
  std::filesystem::path events() const { return path / "events"; }
  std::filesystem::path output() const { return path / "output"; }
  std::filesystem::path commands() const { return path / "commands"; }
  std::filesystem::path pid() const { return path / "pid"; }
  std::filesystem::path last_event() const { return path / "last.pb"; }
  std::filesystem::path exit() const { return path / "exit.pb"; }

  // The directory itself and the FIFO.
  absl::Status create() const;
};

class RunDirectory {
 public:
  // INVALID_ARGUMENT: the id cannot name a directory.
  static absl::StatusOr<RunDirectory> of(const std::filesystem::path& state_dir,
                                         const v1::RunId& id);
  // Every run under the state directory.
  static std::vector<RunDirectory> list(const std::filesystem::path& state_dir);

  const v1::RunId& id() const { return id_; }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path prepare() const { return path_ / "run.pb"; }
  std::filesystem::path start() const { return path_ / "start.pb"; }
  std::filesystem::path lease() const { return path_ / "lease"; }
  RankDirectory rank(int rank) const;

  // Gives the lease file the time as its modification time (of the boot clock, which is no date),
  // making it first if need be. Ranks read it there, also while no agent runs, and end by it.
  absl::Status renew_lease(spec::BootClock::time_point time) const;

  // Deletes the run, and the job's directory when nothing is left in it.
  void remove() const;

 private:
  RunDirectory(v1::RunId id, std::filesystem::path path)
      : id_(std::move(id)), path_(std::move(path)) {}

  v1::RunId id_;
  std::filesystem::path path_;
};

}  // namespace tessera::agent
