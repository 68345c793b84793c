// tesserad without its wires: the real Control on the real store, on a disk of its own. A crash
// leaves what a kill -9 leaves: the files as they are at that moment, with what was not committed
// lost. Or its machine loses power: the files as they reached the disk (disk.h).
//
// After each commit it checks what must hold of all jobs together, and after each crash that the
// store has what was committed: all of it, and of a commit that power failed in all or nothing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/agents/control.h"
#include "tests/simulator/channel.h"
#include "tests/simulator/disk.h"

namespace tessera::server::simulator {

class Coordinator {
 public:
  Coordinator(World& world, ControlOptions options);

  void start();
  // At once, or in the course of the next round: before its commit, or after it and before anybody
  // hears of it, or of the next that writes, somewhere in that, which only a loss of power can be.
  enum class Moment { kNow, kBeforeCommit, kAfterCommit, kInCommit };
  enum class Loss { kProcess, kPower };
  // It is started again so long after.
  void crash(Moment moment, Loss loss, absl::Duration away);
  bool is_up() const { return control_ != nullptr; }

  // A stream from an agent; nullptr where nobody listens.
  std::shared_ptr<Channel> accept(const Wire& wire,
                                  std::function<void(const v1::SessionResponse&)> get,
                                  std::function<void(const absl::Status&)> closed);
  // Runs `task` in a later round, with others; dropped where the process is gone by then.
  void post(std::function<void(Control&)> task);
  // Somebody hears of what was done. Throws where that is not committed yet.
  void check_speaks() const;

  // As last committed, by id; those that ended too.
  const std::map<std::string, v1::Job>& jobs() const { return jobs_; }
  // Devices that a project's jobs may hold, for the check.
  std::map<std::string, int> quotas;
  // Nothing breaks, so that no attempt is repeated.
  bool is_quiet = false;
  int64_t num_crashes() const { return num_crashes_; }
  // Those of them in which the machine lost power; commits of jobs that it struck and that are
  // there, and those that are not.
  int64_t num_power_losses() const { return num_power_losses_; }
  int64_t num_kept_commits() const { return num_kept_commits_; }
  int64_t num_lost_commits() const { return num_lost_commits_; }
  // Attempts that began with fewer ranks than the job asks for.
  int64_t num_shrunk() const { return num_shrunk_; }

 private:
  static constexpr absl::Duration kTick = absl::Seconds(1);
  // Of a node that a job is on, and of the others that have to be told: many leases and fences.
  static constexpr absl::Duration kMostSilence = absl::Minutes(10);

  void fail_to_start();
  void tick(int64_t life);
  void round();
  bool commit_without_power();
  void die();
  void committed(const std::vector<JobChange>& changes);
  using Jobs = std::map<std::string, v1::Job>;

  // A job that the store has otherwise than `jobs` do; "": none.
  std::string difference(const Jobs& jobs);
  void check_files();
  void check_store();
  void check_holdings() const;
  void check_silence() const;
  void check_checkpoint(const std::string& job, const v1::Event& event);

  World& world_;
  Disk disk_;
  const ControlOptions options_;
  int64_t life_ = 0;
  int64_t num_crashes_ = 0;
  int64_t num_power_losses_ = 0;
  int64_t num_kept_commits_ = 0;
  int64_t num_lost_commits_ = 0;
  int64_t num_shrunk_ = 0;
  Moment moment_ = Moment::kNow;
  Loss loss_ = Loss::kProcess;
  absl::Duration away_;
  bool round_asked_ = false;
  bool in_round_ = false;  // and what it did is not committed
  std::vector<std::function<void(Control&)>> tasks_;
  std::vector<ControlLoop::Task> effects_;
  std::vector<std::weak_ptr<Channel>> channels_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Control> control_;
  Jobs jobs_;
  int64_t num_stored_ = 0;  // jobs, at the start
  // As they were before a commit that power failed in, of which nobody knows yet.
  std::optional<Jobs> jobs_before_;
  // The last checkpoint that the events of a job tell of, and the attempt that wrote it.
  struct Told {
    int attempt = 0, step = 0;
  };
  std::map<std::string, Told> told_, told_before_;
  absl::Duration start_;
  // When a node was last heard.
  std::map<std::string, absl::Duration> heard_;
};

}  // namespace tessera::server::simulator
