// Disks that fail under a process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "tests/support/failing_disk.h"

namespace tessera::faults {

// A file system of its own in memory, mounted on a directory that it makes; unmounted at the end.
class SmallDisk {
 public:
  // Nothing where this process may not mount; `why` says so.
  static std::optional<SmallDisk> mount(const std::filesystem::path& at, int64_t bytes,
                                        std::string& why);
  ~SmallDisk();
  SmallDisk(SmallDisk&& other) noexcept : at_(std::exchange(other.at_, {})) {}
  SmallDisk& operator=(SmallDisk&& other) noexcept {
    std::swap(at_, other.at_);
    return *this;
  }

  // Leaves no byte; undone by empty().
  void fill() const;
  void empty() const;

 private:
  explicit SmallDisk(std::filesystem::path at) : at_(std::move(at)) {}
  std::filesystem::path at_;
};

// failing_disk.so in the environment of what is started while this lives.
class FaultyCalls {
 public:
  // Meant are files below `prefix`. `control` is a file that it makes.
  FaultyCalls(const std::filesystem::path& control, const std::filesystem::path& prefix);
  ~FaultyCalls();

  // Calls `first` to `last` fail, counted from now.
  void arm(int64_t first, int64_t last, int error);
  void disarm();
  // Since arm().
  int64_t num_calls() const;

 private:
  volatile FailingDisk* shared_;
};

// What `PRAGMA integrity_check` says of a database; "ok".
std::string integrity(const std::filesystem::path& database);

}  // namespace tessera::faults
