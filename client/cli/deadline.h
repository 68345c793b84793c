// A stop request that comes by itself after a while, for calls that must be short.
#pragma once

#include <chrono>
#include <stop_token>
#include <thread>

#include "client/cpp/wait.h"

namespace tessera::cli {

class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds after)
      : timer_([source = source_, after](std::stop_token over) mutable {
          if (wait_for(std::move(over), after)) source.request_stop();
        }) {}

  std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  // Ends at once with the deadline's object.
  std::jthread timer_;
};

}  // namespace tessera::cli
