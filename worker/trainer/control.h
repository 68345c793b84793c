// What steers a rank from outside while it trains: commands from the agent, and the lease.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/spec/boot_clock.h"
#include "tessera/v1/trainer.pb.h"

namespace tessera {

// The FIFO of commands, read by a thread of its own: RecordCollectives is answered at once, the
// others wait until they are taken. Thread safe.
class CommandReader {
 public:
  // Empty path: there are none. `record` answers RecordCollectives, in any thread, also after a
  // take() has begun, and does not throw. Throws std::system_error when the FIFO cannot be opened.
  explicit CommandReader(const std::filesystem::path& path, std::function<void()> record = [] {});
  ~CommandReader();
  CommandReader(const CommandReader&) = delete;
  CommandReader& operator=(const CommandReader&) = delete;

  struct Pending {
    bool stop = false;
    bool save_checkpoint = false;
    std::vector<v1::TraceSteps> traces;
  };
  // All commands that came since the last call, as one. Never blocks.
  Pending take();

 private:
  void listen();
  // Reads what is there; how often it asks for a record.
  int read_commands();

  int fd_ = -1;
  int wake_fd_ = -1;  // readable: the thread is to end
  const std::function<void()> record_;
  std::mutex mutex_;
  std::string buffer_;  // guarded by mutex_, as is the next
  Pending pending_;
  std::thread thread_;
};

// The file the agent touches while the coordinator answers (TrainerInput.lease_path). Its time and
// ours are of the clock that runs since the machine started: whoever sets the machine's date, or
// NTP's step of it, neither ends a lease nor makes it longer.
class Lease {
 public:
  using Now = std::function<spec::BootClock::time_point()>;

  explicit Lease(const v1::TrainerInput& input, Now now = spec::BootClock::now)
      : path_(input.lease_path()), fence_ms_(input.fence_ms()), now_(std::move(now)) {}
  // Throws NetworkError when the lease ran out: this rank may no longer write checkpoints. So it is
  // where the file is gone, or its time is to come, as of another clock: what it tells of is not
  // known then.
  void check() const;

 private:
  std::filesystem::path path_;
  int64_t fence_ms_;
  Now now_;
};

// Looks at the lease all the time: a rank that waits for others, or computes for long, must not
// outlive it, as the job is then started elsewhere.
class LeaseWatch {
 public:
  // How much later than the lease the rank ends, at most. Much less than the coordinator's lease,
  // which is how long it waits after the fence period.
  static constexpr std::chrono::milliseconds kPeriod{500};

  // Calls `expired` once, from a thread of its own, with what Lease::check() says.
  LeaseWatch(Lease lease, std::function<void(const std::string& why)> expired);

 private:
  void watch(const std::stop_token& stop);

  const Lease lease_;
  const std::function<void(const std::string& why)> expired_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  // Last: it uses the others.
  std::jthread thread_;
};

}  // namespace tessera
