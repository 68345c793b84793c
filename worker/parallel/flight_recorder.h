// What a rank exchanged with the others last, and what it does: for whoever asks why a job hangs.
//
// The threads that train write, any thread reads: the answer comes also while a collective never
// ends. A write is a lock that nobody holds for long and a look at the clock; an exchange is two or
// three of them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "tessera/v1/telemetry.pb.h"

namespace tessera {

class FlightRecorder {
 public:
  // Exchanges that are remembered. One that is not done is as old as its number says: 64 later ones
  // push it out as well.
  static constexpr int64_t kMaxKept = 64;

  // In the thread that trains: only what it enters counts.
  FlightRecorder() : owner_(std::this_thread::get_id()) {}

  // What the rank does from now on. `phase` must live on; `step` counts from 1.
  void enter(const char* phase, int step);

  // An exchange begins; gives its number here. `group` and `kind` must live on. `sequence`: its
  // number within the group, from 1.
  int64_t issue(const char* group, int64_t sequence, const char* kind, int64_t bytes);
  // The rank waits for it from now on.
  void wait(int64_t number);
  void finish(int64_t number);

  // Without the rank. Thread safe.
  v1::CollectiveRecord record() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    const char* group = nullptr;
    const char* kind = nullptr;
    int64_t number = 0;  // 0: none
    int64_t sequence = 0;
    int64_t bytes = 0;
    Clock::time_point begin, end;
    bool is_waited_for = false;
    bool done = false;
  };
  Entry& at(int64_t number) { return entries_[static_cast<size_t>(number % kMaxKept)]; }

  const std::thread::id owner_;
  std::atomic<const char*> phase_{"connect"};
  std::atomic<int> step_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_, as is the next.
  std::array<Entry, kMaxKept> entries_;
  int64_t num_issued_ = 0;
};

}  // namespace tessera
