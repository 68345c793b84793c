// Reads what `tessera-trainer --generate` appends to its output.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/v1/generate.pb.h"

namespace tessera::agent {

class ReplyTail {
 public:
  explicit ReplyTail(std::filesystem::path path) : path_(std::move(path)) {}

  // The whole replies that came since the last call, some of them where they are many.
  std::vector<v1::GenerateReply> read();

 private:
  std::filesystem::path path_;
  int64_t offset_ = 0;
};

}  // namespace tessera::agent
