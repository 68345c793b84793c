// What steers a rank from outside while it trains: commands from the agent, and the lease.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/v1/trainer.pb.h"

namespace tessera {

// The FIFO of commands. Never blocks.
class CommandReader {
 public:
  // Empty path: there are none. Throws std::system_error when the FIFO cannot be opened.
  explicit CommandReader(const std::filesystem::path& path);
  ~CommandReader();
  CommandReader(const CommandReader&) = delete;
  CommandReader& operator=(const CommandReader&) = delete;

  struct Pending {
    bool stop = false;
    bool save_checkpoint = false;
  };
  // All commands that came since the last call, as one.
  Pending take();

 private:
  int fd_ = -1;
  std::string buffer_;
};

// The file the agent touches while the coordinator answers (TrainerInput.lease_path).
class Lease {
 public:
  explicit Lease(const v1::TrainerInput& input)
      : path_(input.lease_path()), fence_ms_(input.fence_ms()) {}
  // Throws NetworkError when the lease ran out: this rank may no longer write checkpoints.
  void check() const;

 private:
  std::filesystem::path path_;
  int64_t fence_ms_;
};

}  // namespace tessera
