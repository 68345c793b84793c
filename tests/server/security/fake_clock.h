// A clock that stands until a test turns it, and a directory that ends with the test.
#pragma once

#include <stdlib.h>

#include <filesystem>

#include "server/jobs/clock.h"

namespace tessera::server {

class FakeClock final : public Clock {
 public:
  absl::Time wall() const override { return absl::FromUnixSeconds(1'700'000'000) + passed; }
  absl::Duration uptime() const override { return absl::Hours(1) + passed; }

  absl::Duration passed;
};

class TempDirectory {
 public:
  TempDirectory() {
    char pattern[] = "/tmp/tessera-security-XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::server
