#include "tests/support/fleet.h"

#include <algorithm>
#include <utility>

#include "tests/support/simulated_agent.h"

namespace tessera::support {
namespace {

constexpr std::chrono::milliseconds kMaxTick{20};

}  // namespace

Fleet::Fleet(FleetOptions options, FleetObserver observer)
    : options_(std::move(options)), observer_(std::move(observer)) {
  for (int number = 0; number < options_.num_nodes; ++number) {
    agents_.push_back(std::make_unique<SimulatedAgent>(loop_, options_, observer_, number));
    agents_.back()->connect();
  }
  tick();
  thread_ = std::thread([this] { loop_.run(); });
}

Fleet::~Fleet() {
  loop_.post([this] {
    auto left = std::make_shared<size_t>(agents_.size());
    for (const auto& agent : agents_) {
      agent->close([this, left] {
        if (--*left == 0) loop_.stop();
      });
    }
  });
  thread_.join();
}

void Fleet::tick() {
  for (const auto& agent : agents_) agent->tick();
  loop_.call_after(std::min(kMaxTick, options_.step_interval), [this] { tick(); });
}

}  // namespace tessera::support
