// A lock that processes of one machine share, and that ends with its holder.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "worker/data/file_descriptor.h"

namespace tessera {

class HostLock {
 public:
  // Waits for the lock, calling `waiting` about once a second. The file is made where it is not
  // there. Throws std::system_error.
  static HostLock wait(const std::filesystem::path& path, const std::function<void()>& waiting);
  // Empty when another process holds it.
  static std::optional<HostLock> try_now(const std::filesystem::path& path);

 private:
  explicit HostLock(FileDescriptor file) : file_(std::move(file)) {}

  FileDescriptor file_;  // closing it ends the lock
};

}  // namespace tessera
