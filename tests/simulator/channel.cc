#include "tests/simulator/channel.h"

#include <algorithm>

namespace tessera::server::simulator {
namespace {

constexpr absl::Duration kMinDelay = absl::Microseconds(200), kMaxDelay = absl::Milliseconds(20);
// A packet that was not answered is sent again.
constexpr absl::Duration kRetry = absl::Milliseconds(300);

}  // namespace

template <typename Message>
void Channel::put(Lane<Message>& lane, Message message, void (Channel::*pump)()) {
  if (broken_) return;
  absl::Duration arrival = world_.now() + world_.between(kMinDelay, kMaxDelay);
  if (world_.chance(0.01)) arrival += world_.between(kMaxDelay, absl::Seconds(3));
  // Messages of a direction never overtake each other.
  if (!lane.under_way.empty()) arrival = std::max(arrival, lane.under_way.back().first);
  lane.under_way.emplace_back(arrival, std::move(message));
  if (lane.pumping) return;
  lane.pumping = true;
  world_.after(arrival - world_.now(), [self = shared_from_this(), pump] { (*self.*pump)(); });
}

void Channel::pump_up() {
  up_.pumping = false;
  while (server_open_ && wire_.to_server && !up_.under_way.empty() &&
         up_.under_way.front().first <= world_.now()) {
    const v1::SessionRequest message = std::move(up_.under_way.front().second);
    up_.under_way.pop_front();
    ends_.server_gets(shared_from_this(), message);
  }
  if (!server_open_ || up_.under_way.empty()) return;
  up_.pumping = true;
  const absl::Duration wait = wire_.to_server ? up_.under_way.front().first - world_.now() : kRetry;
  world_.after(wait, [self = shared_from_this()] { self->pump_up(); });
}

void Channel::pump_down() {
  down_.pumping = false;
  while (agent_open_ && wire_.to_agent && !down_.under_way.empty() &&
         down_.under_way.front().first <= world_.now()) {
    const v1::SessionResponse message = std::move(down_.under_way.front().second);
    down_.under_way.pop_front();
    ends_.agent_gets(message);
  }
  if (!agent_open_ || down_.under_way.empty()) return;
  down_.pumping = true;
  const absl::Duration wait =
      wire_.to_agent ? down_.under_way.front().first - world_.now() : kRetry;
  world_.after(wait, [self = shared_from_this()] { self->pump_down(); });
}

void Channel::send(v1::SessionResponse message) {
  ends_.server_speaks();
  put(down_, std::move(message), &Channel::pump_down);
}

void Channel::send_up(v1::SessionRequest message) {
  put(up_, std::move(message), &Channel::pump_up);
}

void Channel::close_agent(const absl::Status& status) {
  if (std::exchange(agent_open_, false)) ends_.agent_closed(status);
}

void Channel::close_server() {
  if (std::exchange(server_open_, false)) ends_.server_closed(shared_from_this());
}

void Channel::end(absl::Status status) {
  ends_.server_speaks();
  broken_ = true;
  // The status follows what was sent before it.
  world_.after(world_.between(kMaxDelay, 4 * kMaxDelay),
               [self = shared_from_this(), status] { self->close_agent(status); });
  world_.after(kMinDelay, [self = shared_from_this()] { self->close_server(); });
}

void Channel::break_off(absl::Duration most) {
  broken_ = true;
  if (world_.chance(0.5)) down_.under_way.clear();
  if (world_.chance(0.5)) up_.under_way.clear();
  world_.after(world_.between(absl::ZeroDuration(), most), [self = shared_from_this()] {
    self->close_agent(absl::UnavailableError("connection reset"));
  });
  world_.after(world_.between(absl::ZeroDuration(), most),
               [self = shared_from_this()] { self->close_server(); });
}

void Channel::abandon(absl::Duration server_learns) {
  agent_open_ = false;
  broken_ = true;
  world_.after(server_learns, [self = shared_from_this()] { self->close_server(); });
}

void Channel::lose_server() {
  server_open_ = false;
  broken_ = true;
  world_.after(world_.between(kMinDelay, kMaxDelay), [self = shared_from_this()] {
    self->close_agent(absl::UnavailableError("the coordinator is gone"));
  });
}

}  // namespace tessera::server::simulator
