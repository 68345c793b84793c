#include "tests/simulator/coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/state.h"

namespace tessera::server::simulator {
namespace {

namespace fs = std::filesystem;

}  // namespace

Coordinator::Coordinator(World& world, fs::path directory, ControlOptions options)
    : world_(world), directory_(std::move(directory)), options_(options) {}

Coordinator::~Coordinator() {
  control_.reset();
  store_.reset();
  fs::remove_all(directory_);
}

void Coordinator::start() {
  if (is_up()) return;
  ++life_;
  const fs::path files = directory_ / absl::StrCat(generation_);
  fs::create_directories(files);
  auto store = Store::open(files / "db");
  if (!store.ok()) throw Violation(absl::StrCat("the store: ", store.status().message()));
  store_ = *std::move(store);
  check_store();
  world_.tell("the coordinator starts");
  control_ = std::make_unique<Control>(
      *store_, world_, options_, [this] { return world_.bits(); },
      [this](ControlLoop::Task effect) { effects_.push_back(std::move(effect)); },
      [this](const std::vector<JobChange>& changes) { committed(changes); });
  tick(life_);
}

// What anybody was told is there, as it was told.
void Coordinator::check_store() {
  for (const auto& [id, job] : jobs_) {
    const absl::StatusOr<JobRecord> record = store_->queries().find(id);
    if (!record.ok()) throw Violation(absl::StrCat("job ", id, " was lost"));
    const v1::Job& stored = record->job();
    if (stored.state() != job.state() || stored.attempt() != job.attempt()) {
      throw Violation(absl::StrCat("job ", id, " was ", std::string(state_name(job.state())),
                                   ", attempt ", job.attempt(), ", and is stored as ",
                                   std::string(state_name(stored.state())), ", attempt ",
                                   stored.attempt()));
    }
  }
}

void Coordinator::tick(int64_t life) {
  if (life != life_) return;
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
  for (const auto& task : std::exchange(tasks_, {})) task(*control_);
  if (moment_ == Moment::kBeforeCommit) return die();
  control_->commit();
  if (moment_ == Moment::kAfterCommit) return die();
  for (ControlLoop::Task& effect : std::exchange(effects_, {})) effect();
}

void Coordinator::crash(Moment moment) {
  if (!is_up()) return;
  moment_ = moment;
  if (moment == Moment::kNow) die();
}

void Coordinator::die() {
  world_.tell("the coordinator crashes");
  ++num_crashes_;
  ++life_;
  moment_ = Moment::kNow;
  // The files as they are, not as an orderly end would leave them.
  const fs::path files = directory_ / absl::StrCat(generation_);
  const fs::path left = directory_ / absl::StrCat(++generation_);
  fs::create_directories(left);
  for (const char* name : {"db", "db-wal"}) {
    if (fs::exists(files / name)) fs::copy_file(files / name, left / name);
  }
  tasks_.clear();
  round_asked_ = false;
  effects_.clear();
  control_.reset();
  store_.reset();
  fs::remove_all(files);
  for (const auto& channel : std::exchange(channels_, {})) {
    if (const auto open = channel.lock()) open->lose_server();
  }
}

std::shared_ptr<Channel> Coordinator::accept(const Wire& wire,
                                             std::function<void(const v1::SessionResponse&)> get,
                                             std::function<void(const absl::Status&)> closed) {
  if (!is_up()) return nullptr;
  auto greeted = std::make_shared<bool>(false);
  auto channel = std::make_shared<Channel>(
      world_, wire,
      Channel::Ends{.server_gets =
                        [this, greeted](const std::shared_ptr<Channel>& from,
                                        const v1::SessionRequest& message) {
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
      if (!event.has_state()) continue;
      moved = true;
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
