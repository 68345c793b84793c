#include "tests/simulator/coordinator.h"

#include <algorithm>
#include <utility>

#include <SQLiteCpp/SQLiteCpp.h>
#include <google/protobuf/util/message_differencer.h>

#include "absl/strings/str_cat.h"
#include "server/jobs/state.h"

namespace tessera::server::simulator {
namespace {

constexpr char kDatabase[] = "db";
// Pages between checkpoints of the log: SQLite's default, and fewer, so that power fails in many.
constexpr int kCheckpointPages = 1000, kLeastCheckpointPages = 5, kFewCheckpointPages = 50;
// Of one commit, at most; more are found in one that does a checkpoint.
constexpr int64_t kFewOperations = 12, kMaxOperations = 60;

int checkpoint_pages(World& world) {
  if (world.chance(0.3)) return kCheckpointPages;
  return static_cast<int>(world.between(kLeastCheckpointPages, kFewCheckpointPages));
}

int64_t count(SQLite::Database& database, const char* what) {
  return database.execAndGet(what).getInt64();
}

}  // namespace

Coordinator::Coordinator(World& world, ControlOptions options)
    : world_(world), disk_(world, checkpoint_pages(world)), options_(options) {}

// Power may fail while it starts, too.
void Coordinator::fail_to_start() {
  disk_.fail_power_after(world_.between(0, kMaxOperations));
  const auto store = Store::open(kDatabase);
  if (!store.ok()) throw Violation(absl::StrCat("the store: ", store.status().message()));
  disk_.fail_power();
}

void Coordinator::start() {
  if (is_up()) return;
  while (world_.chance(0.1)) {
    fail_to_start();
    disk_.restart();
  }
  ++life_;
  check_files();
  auto store = Store::open(kDatabase);
  if (!store.ok()) throw Violation(absl::StrCat("the store: ", store.status().message()));
  store_ = *std::move(store);
  check_store();
  start_ = world_.now();
  world_.tell("the coordinator starts");
  control_ = std::make_unique<Control>(
      *store_, world_, options_, [this] { return world_.bits(); },
      [this](ControlLoop::Task effect) { effects_.push_back(std::move(effect)); },
      [this](const std::vector<JobChange>& changes) { committed(changes); });
  tick(life_);
}

// What SQLite says of the files, and the revisions of events, which have no gaps.
void Coordinator::check_files() {
  if (!disk_.exists(kDatabase)) {
    if (!jobs_.empty()) throw Violation("the database was lost");
    return;
  }
  SQLite::Database database(kDatabase, SQLite::OPEN_READWRITE);
  // What a crash left is for the store to find.
  sqlite3_db_config(database.getHandle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  const std::string verdict = database.execAndGet("PRAGMA integrity_check").getString();
  if (verdict != "ok") throw Violation(absl::StrCat("the database: ", verdict));
  if (!database.tableExists("events")) {
    if (!jobs_.empty()) throw Violation("the tables were lost");
    return;
  }
  const int64_t num_events = count(database, "SELECT count(*) FROM events");
  const int64_t last = count(database, "SELECT coalesce(max(revision), 0) FROM events");
  if (num_events != last) {
    throw Violation(absl::StrCat(num_events, " events are stored up to revision ", last));
  }
  num_stored_ = count(database, "SELECT count(*) FROM jobs");
}

std::string Coordinator::difference(const Jobs& jobs) {
  for (const auto& [id, job] : jobs) {
    const absl::StatusOr<JobRecord> record = store_->queries().find(id);
    if (!record.ok()) return absl::StrCat("job ", id, " was lost");
    const v1::Job& stored = record->job();
    if (!google::protobuf::util::MessageDifferencer::Equals(stored, job)) {
      return absl::StrCat("job ", id, " was ", job.ShortDebugString(), ", and is stored as ",
                          stored.ShortDebugString());
    }
  }
  if (num_stored_ == std::ssize(jobs)) return "";
  return absl::StrCat(num_stored_, " jobs are stored, of ", jobs.size());
}

// What anybody was told is there, as it was told.
void Coordinator::check_store() {
  const std::string why = difference(jobs_);
  if (!jobs_before_) {
    if (!why.empty()) throw Violation(why);
    return;
  }
  const Jobs before = *std::exchange(jobs_before_, std::nullopt);
  const std::string why_not_before = difference(before);
  if (!why.empty() && !why_not_before.empty()) {
    throw Violation(absl::StrCat("half of a commit: ", why, "; and ", why_not_before));
  }
  if (why.empty()) {
    num_kept_commits_ += !why_not_before.empty();
  } else {
    jobs_ = before;
    told_ = told_before_;
    ++num_lost_commits_;
  }
}

void Coordinator::tick(int64_t life) {
  if (life != life_) return;
  check_silence();
  post([](Control& control) { control.tick(); });
  world_.after(kTick, [this, life] { tick(life); });
}

void Coordinator::post(std::function<void(Control&)> task) {
  if (!is_up()) return;
  tasks_.push_back(std::move(task));
  if (std::exchange(round_asked_, true)) return;
  world_.after(world_.between(absl::ZeroDuration(), absl::Milliseconds(5)), [this, life = life_] {
    if (life == life_) round();
  });
}

void Coordinator::round() {
  round_asked_ = false;
  in_round_ = true;
  for (const auto& task : std::exchange(tasks_, {})) task(*control_);
  if (moment_ == Moment::kBeforeCommit) return die();
  if (moment_ == Moment::kInCommit) {
    if (commit_without_power()) return die();
  } else {
    control_->commit();
    if (moment_ == Moment::kAfterCommit) return die();
  }
  in_round_ = false;
  for (ControlLoop::Task& effect : std::exchange(effects_, {})) effect();
}

void Coordinator::check_speaks() const {
  if (in_round_) throw Violation("somebody heard of what was not committed");
}

// False: there was nothing to write, and power goes on.
bool Coordinator::commit_without_power() {
  jobs_before_ = jobs_;
  told_before_ = told_;
  const int64_t before = disk_.num_operations();
  disk_.fail_power_after(world_.between(0, world_.chance(0.5) ? kFewOperations : kMaxOperations));
  control_->commit();
  if (disk_.num_operations() > before) return true;
  disk_.fail_power_after(-1);
  jobs_before_.reset();
  return false;
}

void Coordinator::crash(Moment moment, Loss loss, absl::Duration away) {
  if (!is_up()) return;
  away_ = away;
  moment_ = moment;
  loss_ = moment == Moment::kInCommit ? Loss::kPower : loss;
  if (moment == Moment::kNow) die();
}

void Coordinator::die() {
  const bool power = loss_ == Loss::kPower;
  world_.tell(power ? "the coordinator loses power" : "the coordinator crashes");
  ++num_crashes_;
  num_power_losses_ += power;
  ++life_;
  moment_ = Moment::kNow;
  // The files as they are, not as the orderly end that follows leaves them.
  power ? disk_.fail_power() : disk_.kill();
  tasks_.clear();
  round_asked_ = in_round_ = false;
  effects_.clear();
  control_.reset();
  store_.reset();
  disk_.restart();
  world_.after(away_, [this] { start(); });
  for (const auto& channel : std::exchange(channels_, {})) {
    if (const auto open = channel.lock()) open->lose_server();
  }
}

std::shared_ptr<Channel> Coordinator::accept(const Wire& wire,
                                             std::function<void(const v1::SessionResponse&)> get,
                                             std::function<void(const absl::Status&)> closed) {
  if (!is_up()) return nullptr;
  auto greeted = std::make_shared<bool>(false);
  auto node = std::make_shared<std::string>();
  auto channel = std::make_shared<Channel>(
      world_, wire,
      Channel::Ends{.server_gets =
                        [this, greeted, node](const std::shared_ptr<Channel>& from,
                                              const v1::SessionRequest& message) {
                          if (message.has_hello()) *node = message.hello().node();
                          heard_[*node] = world_.now();
                          const bool first = !std::exchange(*greeted, true);
                          post([from, message, first](Control& control) {
                            first ? control.hello(from, message.hello())
                                  : control.receive(from, message);
                          });
                        },
                    .server_closed =
                        [this](const std::shared_ptr<Channel>& from) {
                          post([from](Control& control) { control.closed(from); });
                        },
                    .server_speaks = [this] { check_speaks(); },
                    .agent_gets = std::move(get),
                    .agent_closed = std::move(closed)});
  std::erase_if(channels_, [](const auto& other) { return other.expired(); });
  channels_.push_back(channel);
  return channel;
}

void Coordinator::committed(const std::vector<JobChange>& changes) {
  bool moved = false;
  for (const JobChange& change : changes) {
    for (const v1::Event& event : change.events) {
      if (event.has_checkpoint()) check_checkpoint(change.job.id(), event);
      if (!event.has_state()) continue;
      moved = true;
      if (is_quiet && event.state().state() == v1::Job::RESTARTING) {
        throw Violation(
            absl::StrCat("job ", change.job.id(),
                         " is started anew, and nothing broke: ", event.state().reason()));
      }
      num_shrunk_ += event.state().state() == v1::Job::STARTING &&
                     change.job.placements_size() < change.job.spec().parallelism().num_processes();
      world_.tell(absl::StrCat(change.job.id(), " ", std::string(state_name(event.state().state())),
                               ": ", event.state().reason()));
    }
    const auto [known, is_new] = jobs_.try_emplace(change.job.id(), change.job);
    if (!is_new && is_terminal(known->second.state()) &&
        known->second.state() != change.job.state()) {
      throw Violation(absl::StrCat("job ", change.job.id(), " left its terminal state"));
    }
    if (change.job.attempt() < known->second.attempt()) {
      throw Violation(absl::StrCat("job ", change.job.id(), " went back to an older attempt"));
    }
    known->second = change.job;
  }
  if (moved) check_holdings();
}

// A job does not wait for ever for a machine that is gone.
void Coordinator::check_silence() const {
  for (const auto& [id, job] : jobs_) {
    if (!holds_devices(job.state())) continue;
    for (const v1::Placement& placement : job.placements()) {
      const auto heard = heard_.find(placement.node());
      const absl::Duration last = heard == heard_.end() ? start_ : std::max(start_, heard->second);
      if (world_.now() - last > kMostSilence) {
        throw Violation(absl::StrCat("job ", id, " is still on ", placement.node(),
                                     ", which was not heard for ",
                                     absl::FormatDuration(world_.now() - last)));
      }
    }
  }
}

// Events of an attempt are stored once each, and in their order.
void Coordinator::check_checkpoint(const std::string& job, const v1::Event& event) {
  Told& told = told_[job];
  const int step = event.checkpoint().step();
  if (told.attempt == event.attempt() && step <= told.step) {
    throw Violation(absl::StrCat("job ", job, " tells of the checkpoint of step ", step,
                                 " after that of step ", told.step, " of the same attempt"));
  }
  told = {event.attempt(), step};
}

void Coordinator::check_holdings() const {
  std::map<std::pair<std::string, int>, std::string> owners;
  std::map<std::string, int> held;
  for (const auto& [id, job] : jobs_) {
    if (!holds_devices(job.state())) continue;
    for (const v1::Placement& placement : job.placements()) {
      const auto [owner, is_free] =
          owners.try_emplace({placement.node(), placement.device_index()}, id);
      if (!is_free) {
        throw Violation(absl::StrCat("jobs ", owner->second, " and ", id, " both hold ",
                                     placement.node(), ":", placement.device_index()));
      }
    }
    const int count = job.placements_size();
    const v1::Parallelism& mesh = job.spec().parallelism();
    const int least =
        mesh.has_min_num_processes() ? mesh.min_num_processes() : mesh.num_processes();
    if (count != 0 && (count < least || count > mesh.num_processes())) {
      throw Violation(absl::StrCat("job ", id, " has a gang of ", count));
    }
    held[job.spec().project()] += count;
  }
  for (const auto& [project, most] : quotas) {
    const auto found = held.find(project);
    if (found != held.end() && found->second > most) {
      throw Violation(absl::StrCat("project ", project, " holds ", found->second, " of ", most));
    }
  }
}

}  // namespace tessera::server::simulator
