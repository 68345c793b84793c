// Whether the kernel has killed a process of this agent's control group for lack of memory.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera::agent {

class OomWatch {
 public:
  // Of the calling process's memory control group, version 2 or 1.
  OomWatch();
  // Reads the counter from `file` (for tests); an empty path counts nothing.
  explicit OomWatch(std::filesystem::path file);

  // Call it regularly; recent() looks back between one and two calls.
  void tick();
  // Did the kernel kill one since the tick before the last?
  bool recent() const { return count() > before_last_; }

 private:
  int64_t count() const;

  std::filesystem::path file_;
  int64_t last_ = 0;
  int64_t before_last_ = 0;
};

}  // namespace tessera::agent
