// The directory that a coordinator keeps: its database, socket and lock.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::server {

// A state directory, locked for this process. Movable; the lock goes with it.
class StateDir {
 public:
  // Creates it (mode 0700) where it is missing. FAILED_PRECONDITION: another tesserad has it.
  static absl::StatusOr<StateDir> open(const std::filesystem::path& path);

  StateDir(StateDir&& other) noexcept;
  ~StateDir();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path database() const { return path_ / "tessera.db"; }
  std::string socket_address() const { return "unix:" + (path_ / "tesserad.sock").string(); }

  // Holds the port of the dashboard, also that of the last coordinator.
  std::filesystem::path http_port() const { return path_ / "http.port"; }

  // Writes a file at once and whole: readers see the old content or the new.
  absl::Status publish(const std::string& name, const std::string& content) const;

 private:
  StateDir(std::filesystem::path path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  std::filesystem::path path_;
  int lock_fd_;
};

}  // namespace tessera::server
