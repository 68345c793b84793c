// tessera-data: an InspectRequest on standard input, InspectReplies on standard output (see
// inspect.proto). For `tessera data inspect` and `tessera profile`.
//
// Exit codes: 0 all was said, a user's mistake included; 1 a failure, on standard error.
#include <google/protobuf/util/delimited_message_util.h>

#include <exception>
#include <iostream>

#include "worker/errors.h"
#include "worker/inspect/inspect.h"
#include "worker/inspect/profile.h"

namespace {

using tessera::v1::InspectReply;

void write(const InspectReply& reply) {
  google::protobuf::util::SerializeDelimitedToOstream(reply, &std::cout);
}

int run() {
  tessera::v1::InspectRequest request;
  if (!request.ParseFromIstream(&std::cin)) {
    std::cerr << "standard input is no InspectRequest; `tessera data inspect` and `tessera "
                 "profile` make one\n";
    return 1;
  }
  try {
    request.has_profile() ? tessera::profile(request, write) : tessera::inspect(request, write);
  } catch (const tessera::UserError& error) {
    InspectReply reply;
    reply.mutable_failure()->set_kind(tessera::v1::Failure::USER);
    reply.mutable_failure()->set_field(error.field());
    reply.mutable_failure()->set_message(error.what());
    write(reply);
  }
  return std::cout.flush() ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
