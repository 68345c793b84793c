// Owns a file descriptor.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

namespace tessera {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Opens a regular file that a user named, for reading. Throws UserError(field): not a regular
// file, not readable; AbsentError: not there.
FileDescriptor open_regular_file(const std::filesystem::path& path, const std::string& field);

// Up to `size` bytes from `offset`, fewer only at the end of the file. Throws std::system_error.
size_t read_at(int fd, void* buffer, size_t size, int64_t offset);
// Throws std::system_error.
void write_all(int fd, const void* buffer, size_t size);

}  // namespace tessera
