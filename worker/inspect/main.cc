// tessera-data [--input FILE]: an InspectRequest on standard input or in a file, InspectReplies on
// standard output (see inspect.proto). For `tessera data inspect` and `tessera profile`.
//
// Exit codes: 0 all was said, a user's mistake included; 1 a failure, on standard error; 2 wrong
// usage.
#include <google/protobuf/util/delimited_message_util.h>

#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

#include "worker/errors.h"
#include "worker/inspect/inspect.h"
#include "worker/inspect/profile.h"

namespace {

using tessera::v1::InspectReply;

void write(const InspectReply& reply) {
  google::protobuf::util::SerializeDelimitedToOstream(reply, &std::cout);
}

// Empty: standard input.
int run(const std::string& path) {
  tessera::v1::InspectRequest request;
  std::ifstream file(path, std::ios::binary);
  if (!request.ParseFromIstream(path.empty() ? &std::cin : &file)) {
    std::cerr << (path.empty() ? "standard input" : path)
              << " is no InspectRequest; `tessera data inspect` and `tessera "
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

int main(int argc, char** argv) {
  const bool has_file = argc == 3 && std::string_view(argv[1]) == "--input";
  if (argc > 1 && !has_file) {
    std::cerr << "usage: tessera-data [--input FILE]\n";
    return 2;
  }
  try {
    return run(has_file ? argv[2] : "");
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
