// Calls that stay open end with the credential that they came with.
#include <memory>
#include <string>

#include <gmock/gmock.h>

#include "tests/server/security/secure_service.h"

namespace tessera::server {
namespace {

using v1::Credential;

// A watch of a job that never ends, which has told what there is.
class Watch {
 public:
  Watch(const Caller& caller, const std::string& job)
      : context_(caller.context()), stub_(v1::Coordinator::NewStub(caller.channel)) {
    v1::WatchJobRequest request;
    request.set_id(job);
    stream_ = stub_->WatchJob(context_.get(), request);
    v1::WatchJobResponse response;
    EXPECT_TRUE(stream_->Read(&response));
  }

  // How it ends, with what it still tells before.
  grpc::Status finish() {
    v1::WatchJobResponse response;
    while (stream_->Read(&response)) {
    }
    return stream_->Finish();
  }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream_;
};

TEST(OpenCalls, AWatchEndsWhenItsTokenIsRevoked) {
  SecureService secure;
  const std::string job = secure.service().submit(make_spec()).id();
  const auto token = secure.create_token(Credential::VIEWER);
  const auto other = secure.create_token(Credential::VIEWER);
  Watch watch(secure.with_token("one", token.secret()), job);
  Watch same(secure.with_token("one", token.secret()), job);
  Watch another(secure.with_token("two", other.secret()), job);
  Watch local(secure.local(), job);
  ASSERT_TRUE(secure.revoke(token.credential().id()).ok());
  for (Watch* ended : {&watch, &same}) {
    const grpc::Status status = ended->finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(reason_of(status), "TOKEN_REVOKED");
  }
  // The others go on to the end of the job.
  secure.service().cancel(job);
  EXPECT_TRUE(another.finish().ok());
  EXPECT_TRUE(local.finish().ok());
}

TEST(OpenCalls, AWatchEndsWhenItsTokenExpires) {
  SecureService secure;
  const std::string job = secure.service().submit(make_spec()).id();
  const auto token = secure.create_token(Credential::VIEWER, "", 2);
  const grpc::Status status = Watch(secure.with_token("one", token.secret()), job).finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(reason_of(status), "TOKEN_EXPIRED");
}

TEST(OpenCalls, GenerationEndsWhenItsTokenIsRevoked) {
  SecureService secure;
  Agent machine(secure.service(), "n1", 1);
  const auto token = secure.create_token(Credential::SUBMITTER);
  const Caller caller = secure.with_token("one", token.secret());
  const auto context = caller.context();
  const auto stub = v1::Coordinator::NewStub(caller.channel);
  v1::GenerateRequest request;
  request.set_model("/models/m");
  request.add_prompts()->set_text("hi");
  const auto stream = stub->Generate(context.get(), request);
  // The machine has the question, and does not answer.
  EXPECT_TRUE(machine.next(v1::SessionResponse::kProbe).probe().has_generate());
  ASSERT_TRUE(secure.revoke(token.credential().id()).ok());
  v1::GenerateReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(reason_of(stream->Finish()), "TOKEN_REVOKED");
}

}  // namespace
}  // namespace tessera::server
