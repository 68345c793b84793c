// A lock on a file that ends with its holder, however that ends. Linux only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tessera::cli {

class FileLock {
 public:
  enum class Mode { kShared, kExclusive };

  // Takes the lock, none when another process holds it in a way that excludes `mode`. Creates the
  // file.
  static absl::StatusOr<std::optional<FileLock>> try_lock(const std::filesystem::path& path,
                                                          Mode mode);

  // Whether a process holds the file's lock exclusively. A file that cannot be opened is not held.
  static bool is_held(const std::filesystem::path& path);

  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileLock();

  // Replaces the file's content, a note on the holder.
  absl::Status write(const std::string& note);

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace tessera::cli
