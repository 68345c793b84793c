#include "tests/simulator/training.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tessera::server::simulator {
namespace {

constexpr absl::Duration kLeaseCheck = absl::Seconds(1);
constexpr absl::Duration kPeerTimeout = absl::Seconds(60);

std::string name_of(const Rank& rank) {
  return absl::StrCat(rank.run.job_id(), " attempt ", rank.run.attempt(), " rank ", rank.rank,
                      " on ", rank.spot.node, ":", rank.spot.device);
}

}  // namespace

Course& Training::course(const std::string& job_id) {
  return courses_.at(job_id.substr(0, job_id.rfind('-')));
}

void Training::check_alone(const Rank& rank) const {
  for (const auto& [name, other] : alive_) {
    if (other->run.job_id() == rank.run.job_id() && other->run.attempt() != rank.run.attempt()) {
      throw Violation(absl::StrCat("two attempts of a job run at a time: ", name_of(*other),
                                   " and ", name_of(rank)));
    }
    if (other->spot == rank.spot) {
      throw Violation(
          absl::StrCat("a device has two owners: ", name_of(*other), " and ", name_of(rank)));
    }
  }
}

void Training::spawn(const std::shared_ptr<Rank>& rank) {
  check_alone(*rank);
  world_.tell(absl::StrCat("spawned ", name_of(*rank)));
  rank->alive = true;
  alive_[name_of(*rank)] = rank;
  Attempt& attempt = attempts_[key(rank->run)];
  attempt.ranks.push_back(rank);
  watch_lease(rank);
  v1::TrainerEvent event;
  event.mutable_started()->set_pid(1);
  event.mutable_started()->set_resumed_step(course(rank->run.job_id()).checkpoint);
  const Key its_key = key(rank->run);
  world_.after(world_.between(absl::Milliseconds(100), absl::Seconds(3)),
               [this, rank, event, its_key] {
                 if (!rank->alive) return;
                 write(*rank, event);
                 Attempt& attempt = attempts_[its_key];
                 const auto& ranks = attempt.ranks;
                 const bool all = static_cast<int>(ranks.size()) == rank->world_size &&
                                  std::all_of(ranks.begin(), ranks.end(), [](const auto& other) {
                                    return other->alive && !other->events.empty();
                                  });
                 if (!all || attempt.going) return;
                 attempt.going = true;
                 attempt.step = course(rank->run.job_id()).checkpoint;
                 step(its_key);
               });
  // A peer that never comes is given up.
  world_.after(kPeerTimeout, [this, rank, its_key] {
    if (rank->alive && !attempts_[its_key].going) fail(rank, "the other ranks did not come");
  });
}

void Training::watch_lease(const std::shared_ptr<Rank>& rank) {
  world_.after(kLeaseCheck, [this, rank] {
    if (!rank->alive) return;
    if (world_.now() - rank->lease > rank->fence) return fail(rank, "the lease is too old");
    watch_lease(rank);
  });
}

void Training::write(Rank& rank, const v1::TrainerEvent& event) {
  rank.events.push_back(event);
  if (rank.changed) rank.changed();
}

void Training::step(const Key& its_key) {
  const auto ranks = attempts_[its_key].ranks;
  Course& course = this->course(its_key.first);
  if (!std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->alive; })) {
    return;
  }
  Attempt& attempt = attempts_[its_key];
  const auto told = [&ranks](bool Rank::* what) {
    return std::any_of(ranks.begin(), ranks.end(),
                       [what](const auto& rank) { return (*rank).*what; });
  };
  const bool over = attempt.step >= course.steps;
  const bool stopped = !over && told(&Rank::stop);
  if (attempt.step > course.checkpoint &&
      (attempt.step % course.save_steps == 0 || over || (stopped && told(&Rank::save)))) {
    course.checkpoint = attempt.step;
    v1::TrainerEvent event;
    event.mutable_checkpoint()->set_step(attempt.step);
    write(*ranks.front(), event);
  }
  if (over || stopped) {
    course.ended |= over;
    for (const auto& rank : ranks) end(rank, stopped);
    return;
  }
  ++attempt.step;
  world_.after(course.step_time, [this, its_key] { step(its_key); });
}

void Training::end(const std::shared_ptr<Rank>& rank, bool stopped) {
  v1::TrainerEvent event;
  event.mutable_finished()->set_stopped(stopped);
  if (!stopped) event.mutable_finished()->set_output("/out/final");
  rank->alive = false;
  alive_.erase(name_of(*rank));
  write(*rank, event);
}

void Training::fail(const std::shared_ptr<Rank>& rank, const std::string& why) {
  v1::TrainerEvent event;
  event.mutable_failed()->set_kind(v1::Failure::NETWORK);
  event.mutable_failed()->set_message(why);
  event.mutable_failed()->set_rank(rank->rank);
  world_.tell(absl::StrCat(name_of(*rank), ": ", why));
  rank->alive = false;
  alive_.erase(name_of(*rank));
  write(*rank, event);
  gone(rank);
}

void Training::kill(const std::shared_ptr<Rank>& rank, const std::string& why) {
  if (!rank->alive) return;
  world_.tell(absl::StrCat("killed ", name_of(*rank), ": ", why));
  rank->alive = false;
  alive_.erase(name_of(*rank));
  rank->exit.set_kind(v1::Failure::DEVICE);
  rank->exit.set_message(why);
  rank->exit.set_rank(rank->rank);
  if (rank->changed) rank->changed();
  gone(rank);
}

void Training::gone(const std::shared_ptr<Rank>& rank) {
  for (const auto& peer : attempts_[key(rank->run)].ranks) {
    if (!peer->alive) continue;
    world_.after(world_.between(absl::Milliseconds(1), absl::Seconds(5)), [this, peer] {
      if (peer->alive) fail(peer, "lost a peer");
    });
  }
}

void Training::power_off(const std::string& node) {
  for (const auto& [name, rank] : std::map(alive_)) {
    if (rank->spot.node == node) kill(rank, "its machine lost power");
  }
}

std::shared_ptr<Rank> Training::any() {
  if (alive_.empty()) return nullptr;
  return std::next(alive_.begin(), world_.between(0, std::ssize(alive_) - 1))->second;
}

}  // namespace tessera::server::simulator
