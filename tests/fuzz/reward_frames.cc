// What tessera-rewards, which talks to servers of the user's, sends to rank 0.
#include "worker/rewards/frames.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include <google/protobuf/stubs/logging.h>

#include "tests/fuzz/fuzz.h"
#include "worker/rewards/frames.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  // Of text that is no UTF-8, on standard error.
  const google::protobuf::LogSilencer silence;
  int ends[2];
  fuzz::require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "the machine has sockets");
  // What the socket holds without a reader.
  const size_t sent = std::min<size_t>(size, 64 << 10);
  fuzz::require(::send(ends[0], data, sent, 0) == static_cast<ssize_t>(sent), "it takes as much");
  ::shutdown(ends[0], SHUT_WR);
  try {
    rewards::Answer answer;
    while (receive_frame(ends[1], answer)) {
    }
  } catch (const std::runtime_error&) {
  }
  ::close(ends[0]);
  ::close(ends[1]);
  return 0;
}
