#include "client/cpp/wait.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace tessera {

bool wait_for(std::stop_token stop, std::chrono::milliseconds duration) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, duration, [] { return false; });
  return !stop.stop_requested();
}

bool Backoff::wait(std::stop_token stop) {
  return wait_for(std::move(stop), std::exchange(next_, std::min(2 * next_, kLast)));
}

}  // namespace tessera
