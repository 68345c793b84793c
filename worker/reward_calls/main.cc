// tessera-rewards: asks reward servers for the trainer that started it.
//
// Standard input is a socket: Questions come in frames, and Answers go back. It ends when the
// trainer does.
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>

#include "worker/reward_calls/calls.h"
#include "worker/rewards/frames.h"

namespace tessera {
namespace {

constexpr int kSocket = 0;

void answer(rewards::Question question) {
  static std::mutex one_at_a_time;
  try {
    RewardCalls calls(std::move(question), [](const rewards::Answer& answer) {
      const std::lock_guard lock(one_at_a_time);
      if (!send_frame(kSocket, answer)) std::_Exit(0);
    });
    calls.run();
  } catch (const std::exception& error) {
    std::cerr << "error: tessera-rewards: " << error.what() << std::endl;
    std::_Exit(1);
  }
}

int run() {
  while (true) {
    rewards::Question question;
    if (!receive_frame(kSocket, question)) return 0;
    std::thread(answer, std::move(question)).detach();
  }
}

}  // namespace
}  // namespace tessera

int main() {
  // The trainer decides when this ends; a Ctrl-C at a terminal goes to both.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  try {
    // Calls that are under way are nobody's any more.
    std::_Exit(tessera::run());
  } catch (const std::exception& error) {
    std::cerr << "error: tessera-rewards: " << error.what() << std::endl;
    return 1;
  }
}
