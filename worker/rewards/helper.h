// tessera-rewards as a child of this process: it asks reward servers, so that the trainer need not
// link gRPC. It ends with this process, whatever happens to it.
#pragma once

#include <sys/types.h>

#include <filesystem>

namespace tessera {

// The tessera-rewards beside this program.
std::filesystem::path helper_beside_this_program();

class RewardHelper {
 public:
  // Throws std::system_error: the program cannot be started.
  explicit RewardHelper(const std::filesystem::path& program);
  // Kills the child, whatever it does.
  ~RewardHelper();
  RewardHelper(const RewardHelper&) = delete;
  RewardHelper& operator=(const RewardHelper&) = delete;

  // Takes Questions and gives Answers, in frames. It ends when the child does.
  int socket() const { return socket_; }

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace tessera
