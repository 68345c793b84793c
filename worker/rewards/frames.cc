#include "worker/rewards/frames.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tessera {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// What protobuf itself can read.
constexpr size_t kMaxFrameBytes = (size_t{1} << 31) - 1;
constexpr size_t kPieceBytes = size_t{1} << 20;

bool send_all(int socket, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t count = ::send(socket, data, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    data += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

bool receive_all(int socket, char* data, size_t size) {
  while (size > 0) {
    const ssize_t count = ::recv(socket, data, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    data += count;
    size -= static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

bool send_frame(int socket, const google::protobuf::Message& message) {
  std::string bytes;
  const size_t size = message.ByteSizeLong();
  if (size > kMaxFrameBytes || !message.SerializeToString(&bytes)) {
    throw std::runtime_error("completions of " + std::to_string(size) +
                             " bytes are too many for a reward server at once");
  }
  const auto length = static_cast<uint32_t>(bytes.size());
  return send_all(socket, reinterpret_cast<const char*>(&length), sizeof(length)) &&
         send_all(socket, bytes.data(), bytes.size());
}

bool receive_frame(int socket, google::protobuf::Message& message) {
  uint32_t length = 0;
  if (!receive_all(socket, reinterpret_cast<char*>(&length), sizeof(length))) return false;
  if (length > kMaxFrameBytes) throw std::runtime_error("what came is too long for a message");
  // A length is only a claim: memory is taken as the bytes come.
  std::string bytes;
  while (bytes.size() < length) {
    const size_t begin = bytes.size();
    bytes.resize(std::min<size_t>(length, begin + kPieceBytes));
    if (!receive_all(socket, bytes.data() + begin, bytes.size() - begin)) return false;
  }
  if (!message.ParseFromString(bytes))
    throw std::runtime_error("what came is no " + message.GetTypeName());
  return true;
}

}  // namespace tessera
