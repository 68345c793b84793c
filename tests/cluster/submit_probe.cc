// Submits job specs past the command line's own checks, and prints what the service answers.
//
//   submit_probe ADDRESS SPEC.json ...
//
// Each SPEC.json is a JobSpec in ProtoJSON. Prints a google.rpc.Status in ProtoJSON for each, a
// line each; code 0 is a spec that would have been taken: nothing is stored.
#include <google/protobuf/util/json_util.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tessera/v1/coordinator.grpc.pb.h"

namespace tessera {
namespace {

namespace json = google::protobuf::util;

google::rpc::Status submit(v1::Coordinator::Stub& stub, const v1::JobSpec& spec) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  v1::SubmitJobResponse response;
  const grpc::Status status = stub.SubmitJob(&context, request, &response);
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) std::abort();
  // What the trailer itself says, whatever its details repeat.
  details.set_code(status.error_code());
  details.set_message(status.error_message());
  return details;
}

int run(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: submit_probe ADDRESS SPEC.json ...\n";
    return 2;
  }
  // Any fields are printed by type, so the types must be linked in.
  google::rpc::BadRequest::descriptor();
  const auto stub =
      v1::Coordinator::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    v1::JobSpec spec;
    if (const auto read = json::JsonStringToMessage(text, &spec); !read.ok()) {
      std::cerr << argv[i] << ": " << read.ToString() << '\n';
      return 1;
    }
    std::string line;
    const auto printed = json::MessageToJsonString(submit(*stub, spec), &line);
    if (!printed.ok()) {
      std::cerr << argv[i] << ": " << printed.ToString() << '\n';
      return 1;
    }
    std::cout << line << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::run(argc, argv); }
