// tesserad without its wires: the real Control on the real store, on files of its own. A crash
// leaves what a kill -9 leaves: the files as they are at that moment, with what was not committed
// lost.
//
// After each commit it checks what must hold of all jobs together.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/agents/control.h"
#include "tests/simulator/channel.h"

namespace tessera::server::simulator {

class Coordinator {
 public:
  // `directory` is empty, and its own.
  Coordinator(World& world, std::filesystem::path directory, ControlOptions options);
  ~Coordinator();

  void start();
  // At once, or in the course of the next round: before its commit, or after it and before anybody
  // hears of it.
  enum class Moment { kNow, kBeforeCommit, kAfterCommit };
  void crash(Moment moment);
  bool is_up() const { return control_ != nullptr; }

  // A stream from an agent; nullptr where nobody listens.
  std::shared_ptr<Channel> accept(const Wire& wire,
                                  std::function<void(const v1::SessionResponse&)> get,
                                  std::function<void(const absl::Status&)> closed);
  // Runs `task` in a later round, with others; dropped where the process is gone by then.
  void post(std::function<void(Control&)> task);

  // As last committed, by id; those that ended too.
  const std::map<std::string, v1::Job>& jobs() const { return jobs_; }
  // Devices that a project's jobs may hold, for the check.
  std::map<std::string, int> quotas;
  int64_t num_crashes() const { return num_crashes_; }
  // Attempts that began with fewer ranks than the job asks for.
  int64_t num_shrunk() const { return num_shrunk_; }

 private:
  static constexpr absl::Duration kTick = absl::Seconds(1);

  void tick(int64_t life);
  void round();
  void die();
  void committed(const std::vector<JobChange>& changes);
  void check_store();
  void check_holdings() const;

  World& world_;
  std::filesystem::path directory_;
  const ControlOptions options_;
  int generation_ = 0;  // of files
  int64_t life_ = 0;
  int64_t num_crashes_ = 0;
  int64_t num_shrunk_ = 0;
  Moment moment_ = Moment::kNow;
  bool round_asked_ = false;
  std::vector<std::function<void(Control&)>> tasks_;
  std::vector<ControlLoop::Task> effects_;
  std::vector<std::weak_ptr<Channel>> channels_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Control> control_;
  std::map<std::string, v1::Job> jobs_;
};

}  // namespace tessera::server::simulator
