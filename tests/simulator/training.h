// The ranks of all machines, and the directory that they share: what a job's attempts do to each
// other. Ranks of an attempt go step by step together; where one is missing the others lose the
// network.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/views.h"
#include "tessera/v1/agent.pb.h"
#include "tests/simulator/world.h"

namespace tessera::server::simulator {

// A rank's process and its files: these stay when it ends.
struct Rank {
  v1::RunId run;
  int rank = 0;
  int world_size = 0;
  Spot spot;
  bool alive = false;
  bool stop = false, save = false;
  // Of its directory's lease file.
  absl::Duration lease, fence;
  std::vector<v1::TrainerEvent> events;
  // The process ended, and its last event does not say how.
  v1::Failure exit;
  // Something was written, or the process ended. Empty: no agent looks.
  std::function<void()> changed;
};

// How a job goes, whatever attempt runs it.
struct Course {
  int steps = 10;
  int save_steps = 3;
  absl::Duration step_time = absl::Seconds(1);
  // The latest in the shared directory.
  int checkpoint = 0;
  // Some attempt's ranks all reached the end.
  bool ended = false;
};

class Training {
 public:
  explicit Training(World& world) : world_(world) {}

  void add_job(const std::string& name, const Course& course) { courses_[name] = course; }
  // Of a job's id, which begins with its name.
  Course& course(const std::string& job_id);

  void spawn(const std::shared_ptr<Rank>& rank);
  // SIGKILL.
  void kill(const std::shared_ptr<Rank>& rank, const std::string& why);
  // All of a machine's.
  void power_off(const std::string& node);
  // Any of them, for chance to strike. nullptr: none lives.
  std::shared_ptr<Rank> any();
  bool is_idle() const { return alive_.empty(); }

 private:
  using Key = std::pair<std::string, int>;
  struct Attempt {
    std::vector<std::shared_ptr<Rank>> ranks;
    int step = 0;
    bool going = false;
  };

  static Key key(const v1::RunId& run) { return {run.job_id(), run.attempt()}; }
  void check_alone(const Rank& rank) const;
  void watch_lease(const std::shared_ptr<Rank>& rank);
  void step(const Key& key);
  void end(const std::shared_ptr<Rank>& rank, bool stopped);
  void fail(const std::shared_ptr<Rank>& rank, const std::string& why);
  // A rank is gone: those left notice.
  void gone(const std::shared_ptr<Rank>& rank);
  static void write(Rank& rank, const v1::TrainerEvent& event);

  World& world_;
  std::map<std::string, Course> courses_;
  std::map<Key, Attempt> attempts_;
  // By name, so that their order is the seed's.
  std::map<std::string, std::shared_ptr<Rank>> alive_;
};

}  // namespace tessera::server::simulator
