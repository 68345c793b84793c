#include "worker/agent/reply_tail.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>

#include <fstream>
#include <string>

namespace tessera::agent {
namespace {

// Of a read: a reply is of a few tokens.
constexpr int64_t kMaxReadBytes = 256 << 10;

}  // namespace

std::vector<v1::GenerateReply> ReplyTail::read() {
  std::vector<v1::GenerateReply> replies;
  std::ifstream file(path_, std::ios::binary);
  if (!file.seekg(offset_)) return replies;
  std::string bytes(kMaxReadBytes, '\0');
  file.read(bytes.data(), kMaxReadBytes);
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(file.gcount()));
  bool is_clean_end = false;
  v1::GenerateReply reply;
  int64_t taken = 0;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&reply, &stream, &is_clean_end)) {
    taken = stream.ByteCount();
    replies.push_back(std::move(reply));
    reply.Clear();
  }
  offset_ += taken;
  return replies;
}

}  // namespace tessera::agent
