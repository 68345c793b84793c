// Files that only their owner may read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::server {

// Written beside with mode 0600, fsynced, renamed: after a crash the file is the old one or the new
// one.
absl::Status write_private(const std::filesystem::path& path, std::string_view bytes);

// The whole file. NOT_FOUND: there is none. FAILED_PRECONDITION: it is longer than 1 MiB.
absl::StatusOr<std::string> read_small(const std::filesystem::path& path);

// read_small of a key. FAILED_PRECONDITION: others may read it, too.
absl::StatusOr<std::string> read_private(const std::filesystem::path& path);

}  // namespace tessera::server
