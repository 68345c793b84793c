// The folder that a service of this machine keeps its state in, and who is using it.
//
// Two locks decide who starts and who stops a service that runs only as long as it is needed:
//   up.lock       held by the one `tessera up` of the folder for as long as it lives.
//   clients.lock  shared by every client at work. Such an `up` takes it for itself before it
//                 stops: a client that comes then waits, and starts a service of its own.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/file_lock.h"

namespace tessera::cli {

class StateDir {
 public:
  explicit StateDir(std::filesystem::path path) : path_(std::move(path)) {}

  // Creates the folder. An error when it cannot be written to, or its path is too long for a
  // socket.
  absl::Status create() const;

  const std::filesystem::path& path() const { return path_; }
  std::string address() const { return "unix:" + (path_ / "tesserad.sock").string(); }
  std::filesystem::path log() const { return path_ / "up.log"; }
  std::filesystem::path http_port() const { return path_ / "http.port"; }

  // The lock of `up`, with a note on how it runs; none when another holds it.
  absl::StatusOr<std::optional<FileLock>> lock_up(bool exit_when_idle) const;
  bool is_up() const { return FileLock::is_held(path_ / "up.lock"); }
  // Whether the `up` that holds the folder, or held it last, ends by itself.
  bool exits_when_idle() const;

  // Counts this process as a client, after a service that is just stopping has gone.
  absl::StatusOr<FileLock> attach(std::stop_token stop, std::chrono::milliseconds timeout) const;
  // The clients' lock for oneself; none while there are clients.
  absl::StatusOr<std::optional<FileLock>> exclude_clients() const;

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::cli
