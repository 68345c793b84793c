// Writes the completions that a job makes to files that data.rollouts reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace tessera {

// Used by one rank. A file holds a generation; their names are in the order of training.
class RolloutRecorder {
 public:
  explicit RolloutRecorder(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // What stands in the directory from that generation on is of a run that did not get to a
  // checkpoint behind it, and is deleted. Throws std::system_error.
  void begin(int64_t epoch, int64_t number) const;
  // Whether there is anything in it.
  bool is_empty() const;
  // Durable and whole on return, or not there. Throws std::system_error.
  void write(int64_t epoch, int64_t number, std::string_view lines) const;

 private:
  std::filesystem::path path_of(int64_t epoch, int64_t number) const;

  const std::filesystem::path directory_;
};

}  // namespace tessera
