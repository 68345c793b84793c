// A program that is started again when it ends, within bounds. Linux only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/cli/child_process.h"

namespace tessera::cli {

class Supervised {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::chrono::seconds kWindow{60};
  static constexpr std::chrono::milliseconds kFirstDelay{100};
  static constexpr std::chrono::milliseconds kLastDelay{2000};
  static constexpr std::chrono::seconds kStopTimeout{20};

  Supervised(std::string name, Command command)
      : name_(std::move(name)), command_(std::move(command)) {}
  Supervised(const Supervised&) = delete;
  Supervised& operator=(const Supervised&) = delete;
  // Kills the program if it was not stopped.
  ~Supervised();

  // Starts the program if it is due; call it often. After a death the delay to the next start
  // doubles with every death in the window. An error when it died `max_deaths` times within the
  // window.
  absl::Status tick(Time now, size_t max_deaths);

  // What has happened since the last call, a sentence, as in "tesserad ended with signal 9
  // (Killed)". Empty: nothing.
  std::string take_news() { return std::exchange(news_, {}); }

  // Asks the program to end and waits for it; kills it after kStopTimeout.
  void stop();

 private:
  // Takes note of the program's end, if it has ended.
  void reap(Time now);
  bool is_running() const { return pid_ > 0; }

  const std::string name_;
  const Command command_;
  pid_t pid_ = -1;
  Time next_start_{};
  std::deque<Time> deaths_;
  std::string news_;
};

}  // namespace tessera::cli
