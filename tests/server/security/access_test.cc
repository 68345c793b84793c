// Joining, limits, revocation and what is written of it all, against a running tesserad.
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/server/security/secure_service.h"
#include "worker/agent/certificate.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using v1::Credential;

constexpr char kListJobs[] = "tessera.v1.Coordinator/ListJobs";
constexpr char kSession[] = "tessera.v1.AgentService/Session";

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

v1::SessionRequest hello(const std::string& node) {
  v1::SessionRequest request;
  request.mutable_hello()->set_node(node);
  request.mutable_hello()->add_devices()->set_kind("cpu");
  return request;
}

TEST(Access, ACertificateIsForItsNodeAlone) {
  SecureService secure;
  const Caller n1 = secure.enrolled("n1");
  EXPECT_TRUE(call(n1, kSession, hello("n1")).ok());
  const grpc::Status other = call(n1, kSession, hello("n2"));
  EXPECT_EQ(other.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(reason_of(other), "OTHER_NODE");
}

TEST(Access, ACertificateOfAnotherAuthorityDoesNotConnect) {
  SecureService secure;
  const ForeignCertificate foreign = make_foreign_certificate("tessera://agent/n1");
  const Caller caller = secure.with_certificate("foreign", foreign.key, foreign.certificate);
  EXPECT_EQ(call(caller, kSession, hello("n1")).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Access, RevokingACertificateEndsItsSession) {
  SecureService secure;
  const Caller n1 = secure.enrolled("n1");
  const auto context = n1.context();
  const auto stub = v1::AgentService::NewStub(n1.channel);
  const auto stream = stub->Session(context.get());
  stream->Write(hello("n1"));
  v1::SessionResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(response.has_welcome());
  v1::ListCredentialsResponse list;
  ASSERT_TRUE(v1::Access::NewStub(secure.service().channel())
                  ->ListCredentials(secure.local().context().get(), {}, &list)
                  .ok());
  for (const Credential& credential : list.credentials()) {
    if (credential.kind() != Credential::CERTIFICATE) continue;
    EXPECT_EQ(credential.node(), "n1");
    ASSERT_TRUE(secure.revoke(credential.id()).ok());
  }
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(reason_of(stream->Finish()), "CERTIFICATE_REVOKED");
  EXPECT_EQ(reason_of(call(n1, kSession, hello("n1"))), "CERTIFICATE_REVOKED");
}

TEST(Access, ARenewedCertificateIsTheSameAgent) {
  SecureService secure;
  const Caller n1 = secure.enrolled("n1");
  const std::string key = agent::make_key();
  v1::RenewCertificateRequest request;
  v1::RenewCertificateResponse response;
  request.set_certificate_request(*agent::make_certificate_request(key));
  const grpc::Status status =
      v1::Access::NewStub(n1.channel)->RenewCertificate(n1.context().get(), request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const Caller renewed = secure.with_certificate("renewed", key, response.certificate());
  EXPECT_TRUE(call(renewed, kSession, hello("n1")).ok());
}

TEST(Access, ForeignAuthoritiesAreTakenByNameWhereTold) {
  const ForeignCertificate foreign = make_foreign_certificate("tessera://agent/n1");
  const ForeignCertificate nameless = make_foreign_certificate("tessera://user/n1");
  char pattern[] = "/tmp/tessera-ca-XXXXXX";
  const std::filesystem::path directory = mkdtemp(pattern);
  std::ofstream(directory / "ca.pem") << foreign.authority << nameless.authority;
  {
    SecureService secure({"--client-ca", directory / "ca.pem"});
    const Caller n1 = secure.with_certificate("n1", foreign.key, foreign.certificate);
    EXPECT_TRUE(call(n1, kSession, hello("n1")).ok());
    EXPECT_EQ(reason_of(call(n1, kSession, hello("n2"))), "OTHER_NODE");
    const Caller who = secure.with_certificate("who", nameless.key, nameless.certificate);
    EXPECT_EQ(reason_of(call(who, kSession, hello("n1"))), "NOT_AN_AGENT");
    const Caller enroller =
        secure.with_token("enroller", secure.create_token(Credential::AGENT).secret());
    EXPECT_EQ(reason_of(call(enroller, "tessera.v1.Access/Enrol", v1::EnrolRequest())),
              "NO_AUTHORITY");
  }
  std::filesystem::remove_all(directory);
}

TEST(Access, ABusyClientIsToldWhenToComeBack) {
  SecureService secure({"--rate-limit", "0.5"});
  const Caller one = secure.with_token("one", secure.create_token(Credential::VIEWER).secret());
  const Caller two = secure.with_token("two", secure.create_token(Credential::VIEWER).secret());
  EXPECT_TRUE(call(one, kListJobs, v1::ListJobsRequest()).ok());
  const grpc::Status status = call(one, kListJobs, v1::ListJobsRequest());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(reason_of(status), "RATE_LIMIT");
  google::rpc::Status details;
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  for (const auto& any : details.details()) any.UnpackTo(&retry);
  EXPECT_TRUE(retry.has_retry_delay());
  EXPECT_LE(retry.retry_delay().seconds(), 2);
  EXPECT_TRUE(call(two, kListJobs, v1::ListJobsRequest()).ok()) << "another's calls are its own";
  const Caller nobody = secure.with_token("nobody", "");
  EXPECT_EQ(call(nobody, kListJobs, v1::ListJobsRequest()).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(call(nobody, kListJobs, v1::ListJobsRequest()).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED)
      << "who is not known is counted by address";
  for (int i = 0; i < 10; ++i)
    EXPECT_TRUE(call(secure.local(), kListJobs, v1::ListJobsRequest()).ok());
}

TEST(Access, MessagesAndHeadersAreBounded) {
  SecureService secure;
  v1::GetJobRequest large;
  large.set_id(std::string(5 << 20, 'x'));
  EXPECT_EQ(call(secure.local(), "tessera.v1.Coordinator/GetJob", large).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  const Caller headers = secure.with_token("headers", std::string(64 << 10, 'x'));
  EXPECT_FALSE(call(headers, kListJobs, v1::ListJobsRequest()).ok());
  const Caller enroller =
      secure.with_token("enroller", secure.create_token(Credential::AGENT).secret());
  v1::EnrolRequest enrol;
  enrol.set_node("n1");
  enrol.set_certificate_request(std::string(17 << 10, 'x'));
  const grpc::Status status = call(enroller, "tessera.v1.Access/Enrol", enrol);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("certificate_request has 17408 bytes"));
}

TEST(Access, TheAuditLogTellsWhoDidWhat) {
  SecureService secure;
  const auto token = secure.create_token(Credential::SUBMITTER, "a");
  const Caller caller = secure.with_token("submitter", token.secret());
  v1::JobSpec spec = make_spec();
  spec.set_project("a");
  const std::string job = secure.service().submit(spec).id();
  v1::CancelJobRequest cancel;
  cancel.set_id(job);
  EXPECT_TRUE(call(caller, "tessera.v1.Coordinator/CancelJob", cancel).ok());
  EXPECT_FALSE(call(caller, "tessera.v1.Access/CreateToken", v1::CreateTokenRequest()).ok());
  EXPECT_TRUE(call(caller, kListJobs, v1::ListJobsRequest()).ok());
  std::vector<nlohmann::json> lines;
  std::istringstream text(read(secure.service().directory() / "state/audit.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  const auto find = [&](const std::string& method, const std::string& decision) {
    for (const auto& line : lines) {
      if (line["method"] == method && line["decision"] == decision) return line;
    }
    return nlohmann::json();
  };
  const auto submitted = find("tessera.v1.Coordinator/SubmitJob", "allowed");
  EXPECT_EQ(submitted["who"], "local");
  EXPECT_EQ(submitted["project"], "a");
  EXPECT_EQ(submitted["name"], "demo");
  const auto cancelled = find("tessera.v1.Coordinator/CancelJob", "allowed");
  EXPECT_EQ(cancelled["who"], "token " + token.credential().id());
  EXPECT_EQ(cancelled["role"], "submitter");
  EXPECT_EQ(cancelled["job"], job);
  EXPECT_THAT(std::string(cancelled["peer"]), HasSubstr("127.0.0.1"));
  const auto refused = find("tessera.v1.Access/CreateToken", "refused");
  EXPECT_EQ(refused["who"], "token " + token.credential().id());
  EXPECT_THAT(std::string(refused["why"]), HasSubstr("takes the role operator"));
  EXPECT_TRUE(find(kListJobs, "allowed").is_null()) << "reads are not audited";
}

TEST(Access, SecretsAreInNothingThatIsWritten) {
  const std::string url = std::string("https:") + "//me:hunter2@host/";
  SecureService secure;
  const std::string secret = secure.create_token(Credential::OPERATOR).secret();
  const Caller caller = secure.with_token("operator", secret);
  // In the name of a job, in a path, and in what a rank says.
  v1::SubmitJobRequest request;
  *request.mutable_spec() = make_spec();
  request.mutable_spec()->mutable_data()->set_train(0, url + secret);
  request.mutable_spec()->set_name(secret);
  request.set_request_id("r");
  const grpc::Status status = call(caller, "tessera.v1.Coordinator/SubmitJob", request);
  EXPECT_THAT(status.error_message(), testing::Not(HasSubstr(secret)));
  EXPECT_THAT(status.error_details(), testing::Not(HasSubstr(secret)));
  const std::string job = secure.service().submit(make_spec()).id();
  Agent machine(secure.service(), "n1", 1);
  const v1::RunId run = machine.prepare().run();
  machine.started(run, 0);
  v1::TrainerEvent log;
  log.mutable_log()->set_text("uses " + secret + " of " + url);
  machine.event(run, 0, log);
  machine.exited(run, 0, v1::Failure::USER, "cannot open " + url);
  machine.ended(run);
  const v1::Job failed = secure.service().await(job, v1::Job::FAILED);
  EXPECT_THAT(failed.failure().message(), HasSubstr("//***@host/"));
  secure.service().stop();
  const std::string hidden = secret.substr(secret.rfind('_') + 1);
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(secure.service().directory())) {
    if (!entry.is_regular_file()) continue;
    const std::string bytes = read(entry.path());
    EXPECT_THAT(bytes, testing::Not(HasSubstr(hidden))) << entry.path();
    EXPECT_THAT(bytes, testing::Not(HasSubstr("hunter2"))) << entry.path();
  }
}

TEST(Access, WhatIsMadeIsItsUsersAlone) {
  SecureService secure;
  secure.service().submit(make_spec());
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(secure.service().directory() / "state")) {
    struct stat info{};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & (S_IRWXG | S_IRWXO), 0U) << entry.path();
  }
}

TEST(Access, NothingIsServedWithoutTlsOffTheSocket) {
  SecureService secure;
  const auto plain = grpc::CreateChannel("127.0.0.1:" + std::to_string(secure.port()),
                                         grpc::InsecureChannelCredentials());
  EXPECT_EQ(call({"plain", plain, ""}, kListJobs, v1::ListJobsRequest()).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  Service insecure({"--listen", "127.0.0.1:0", "--insecure-loopback"});
  const std::string port = read(insecure.directory() / "state/grpc.port");
  const auto open = grpc::CreateChannel("127.0.0.1:" + std::to_string(std::stoi(port)),
                                        grpc::InsecureChannelCredentials());
  EXPECT_TRUE(call({"open", open, ""}, kListJobs, v1::ListJobsRequest()).ok());
}

}  // namespace
}  // namespace tessera::server
