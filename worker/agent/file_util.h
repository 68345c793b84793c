// The few file operations that recovery depends on. Linux only.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>

namespace tessera::agent {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// The status of errno: "cannot `what`: No space left on device".
absl::Status errno_status(absl::string_view what);

absl::Status make_directories(const std::filesystem::path& path);

// The whole file; an error when it is missing or longer than `max_bytes`.
absl::StatusOr<std::string> read_file(const std::filesystem::path& path, size_t max_bytes);

// The last `max_bytes` of the file; empty when it cannot be read.
std::string read_tail(const std::filesystem::path& path, size_t max_bytes);

// Written beside, fsynced, renamed: after a crash the file is the old one or the new one.
absl::Status write_atomically(const std::filesystem::path& path, absl::string_view bytes);

absl::Status write_message(const std::filesystem::path& path,
                           const google::protobuf::MessageLite& message);
absl::Status read_message(const std::filesystem::path& path,
                          google::protobuf::MessageLite& message);

}  // namespace tessera::agent
