// Every method of every service that a running tesserad names, called by every kind of caller. What
// is expected is written down here, apart from the table that the server goes by.
#include <map>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>

#include "tests/server/security/secure_service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using Set = std::set<std::string>;
using v1::Credential;

// Callers. The job of the requests is of project "a".
const Set kEverybody{"nobody",      "bad token",   "revoked",   "expired",        "viewer",
                     "viewer of a", "viewer of b", "submitter", "submitter of a", "submitter of b",
                     "operator",    "enroller",    "agent n1",  "local"};
const Set kUnknown{"nobody", "bad token", "revoked", "expired"};

const Set kReaders{"viewer", "viewer of a", "submitter", "submitter of a", "operator", "local"};
// Lists are for all clients, who see their own projects in them.
const Set kListers{"viewer",         "viewer of a",    "viewer of b", "submitter",
                   "submitter of a", "submitter of b", "operator",    "local"};
const Set kWriters{"submitter", "submitter of a", "operator", "local"};
const Set kOperators{"operator", "local"};
const Set kKnown{"viewer",         "viewer of a", "viewer of b", "submitter", "submitter of a",
                 "submitter of b", "operator",    "enroller",    "agent n1",  "local"};

constexpr char kReflection[] = "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr char kListServices[] = R"(list_services: "*")";

struct Expected {
  // In the text form of protobuf; JOB is the id of the job.
  std::string request;
  Set allowed;
};

const std::map<std::string, Expected> kExpected{
    {"tessera.v1.Coordinator/SubmitJob",
     {R"(spec { name: "x" project: "a" } request_id: "r" validate_only: true)", kWriters}},
    {"tessera.v1.Coordinator/GetJob", {R"(id: "JOB")", kReaders}},
    {"tessera.v1.Coordinator/ListJobs", {"", kListers}},
    {"tessera.v1.Coordinator/CancelJob", {R"(id: "JOB")", kWriters}},
    {"tessera.v1.Coordinator/SuspendJob", {R"(id: "JOB")", kWriters}},
    {"tessera.v1.Coordinator/ResumeJob", {R"(id: "JOB")", kWriters}},
    {"tessera.v1.Coordinator/TraceJob", {R"(id: "JOB")", kWriters}},
    {"tessera.v1.Coordinator/RecordCollectives", {R"(id: "JOB")", kWriters}},
    {"tessera.v1.Coordinator/ListQueue", {"", kListers}},
    {"tessera.v1.Coordinator/SetProject", {R"(project { name: "a" weight: 1 })", kOperators}},
    {"tessera.v1.Coordinator/ListProjects", {"", kListers}},
    {"tessera.v1.Coordinator/WatchJob", {R"(id: "JOB" no_follow: true)", kReaders}},
    {"tessera.v1.Coordinator/ListNodes", {"", kListers}},
    {"tessera.v1.Coordinator/PlanJob", {R"(plan { spec { name: "x" project: "a" } })", kWriters}},
    {"tessera.v1.Coordinator/ProfileData", {R"(inspect { spec { project: "a" } })", kWriters}},
    {"tessera.v1.Coordinator/Generate", {R"(job: "JOB")", kWriters}},
    {"tessera.v1.AgentService/Session",
     {R"(hello { node: "n1" devices { kind: "cpu" } })", {"agent n1", "local"}}},
    {"tessera.v1.Access/CreateToken", {"", kOperators}},
    {"tessera.v1.Access/ListCredentials", {"", kOperators}},
    {"tessera.v1.Access/RevokeCredential", {R"(id: "none")", kOperators}},
    {"tessera.v1.Access/Enrol", {R"(node: "n9" certificate_request: "x")", {"enroller"}}},
    {"tessera.v1.Access/RenewCertificate", {R"(certificate_request: "x")", {"agent n1"}}},
    {"grpc.health.v1.Health/Check", {"", kKnown}},
    {"grpc.health.v1.Health/Watch", {"", kKnown}},
    {kReflection, {kListServices, kKnown}},
};

// gRPC's own, whose descriptors it keeps to itself.
const std::map<std::string, Set> kBuiltIn{{"grpc.health.v1.Health", {"Check", "Watch"}}};

const google::protobuf::MethodDescriptor* descriptor_of(std::string method) {
  method.replace(method.find('/'), 1, ".");
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(method);
}

std::unique_ptr<google::protobuf::Message> message_of(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<google::protobuf::Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

std::unique_ptr<google::protobuf::Message> request_of(const std::string& method, std::string text,
                                                      const std::string& job) {
  const auto* descriptor = descriptor_of(method);
  // An empty message is the same in all types.
  if (descriptor == nullptr) return std::make_unique<v1::ListNodesRequest>();
  auto request = message_of(descriptor->input_type());
  if (const size_t at = text.find("JOB"); at != text.npos) text.replace(at, 3, job);
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, request.get())) << text;
  return request;
}

// Of all services that the server says it has.
std::vector<std::string> methods(const Caller& caller) {
  grpc::ByteBuffer bytes;
  EXPECT_TRUE(call(caller, kReflection, *request_of(kReflection, kListServices, ""), &bytes).ok());
  const auto answer = message_of(descriptor_of(kReflection)->output_type());
  EXPECT_TRUE(
      grpc::SerializationTraits<google::protobuf::Message>::Deserialize(&bytes, answer.get()).ok());
  std::vector<std::string> methods;
  std::istringstream lines(answer->DebugString());
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find("name: \"");
    if (begin == line.npos) continue;
    const std::string name = line.substr(begin + 7, line.size() - begin - 8);
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      methods.push_back(name + "/" + service->method(i)->name());
    }
    if (service != nullptr) continue;
    const auto known = kBuiltIn.find(name);
    if (known == kBuiltIn.end()) ADD_FAILURE() << "nothing is known of the service " << name;
    if (known == kBuiltIn.end()) continue;
    for (const std::string& method : known->second) methods.push_back(name + "/" + method);
  }
  return methods;
}

std::vector<Caller> callers(SecureService& secure) {
  const auto token = [&](const std::string& name, Credential::Role role,
                         const std::string& project = "") {
    return secure.with_token(name, secure.create_token(role, project).secret());
  };
  const auto expiring = secure.create_token(Credential::OPERATOR, "", 1);
  const auto revoked = secure.create_token(Credential::OPERATOR);
  EXPECT_TRUE(secure.revoke(revoked.credential().id()).ok());
  std::string bad = revoked.secret();
  bad.back() = bad.back() == '0' ? '1' : '0';
  std::vector<Caller> callers{secure.with_token("nobody", ""),
                              secure.with_token("bad token", bad),
                              secure.with_token("revoked", revoked.secret()),
                              token("viewer", Credential::VIEWER),
                              token("viewer of a", Credential::VIEWER, "a"),
                              token("viewer of b", Credential::VIEWER, "b"),
                              token("submitter", Credential::SUBMITTER),
                              token("submitter of a", Credential::SUBMITTER, "a"),
                              token("submitter of b", Credential::SUBMITTER, "b"),
                              token("operator", Credential::OPERATOR),
                              token("enroller", Credential::AGENT),
                              secure.enrolled("n1"),
                              secure.local(),
                              secure.with_token("expired", expiring.secret())};
  // It lived for a second.
  grpc::Status status;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (reason_of(status) != "TOKEN_EXPIRED" && std::chrono::steady_clock::now() < give_up) {
    status = call(callers.back(), "tessera.v1.Access/RevokeCredential",
                  *request_of("tessera.v1.Access/RevokeCredential", "", ""));
  }
  return callers;
}

v1::JobSpec spec_of(const std::string& project) {
  v1::JobSpec spec = make_spec();
  spec.set_project(project);
  return spec;
}

void check(const Caller& caller, const std::string& method, const Expected& expected,
           const grpc::Status& status) {
  SCOPED_TRACE(method + " by " + caller.name + ": " + status.error_message());
  const bool is_refusal = status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
                          status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
  if (expected.allowed.contains(caller.name)) {
    EXPECT_FALSE(is_refusal);
    return;
  }
  const bool is_unknown = kUnknown.contains(caller.name);
  EXPECT_EQ(status.error_code(),
            is_unknown ? grpc::StatusCode::UNAUTHENTICATED : grpc::StatusCode::PERMISSION_DENIED);
  // gRPC answers for its own services.
  if (!method.starts_with("tessera.")) return;
  EXPECT_EQ(error_info(status).domain(), "tessera");
  const std::map<std::string, std::string> reasons{{"nobody", "NO_CREDENTIALS"},
                                                   {"bad token", "TOKEN_INVALID"},
                                                   {"revoked", "TOKEN_REVOKED"},
                                                   {"expired", "TOKEN_EXPIRED"}};
  if (is_unknown) {
    EXPECT_EQ(reason_of(status), reasons.at(caller.name));
  } else {
    // Who would be allowed in another project is told of the project.
    std::string in_a = caller.name;
    if (in_a.ends_with(" of b")) in_a.back() = 'a';
    EXPECT_EQ(reason_of(status), expected.allowed.contains(in_a) ? "PROJECT" : "ROLE");
  }
}

TEST(AccessMatrix, EveryMethodByEveryCaller) {
  SecureService secure({"--rate-limit", "1000"});
  const std::string job = secure.service().submit(spec_of("a")).id();
  const std::vector<Caller> all = callers(secure);
  Set names;
  for (const Caller& caller : all) names.insert(caller.name);
  ASSERT_EQ(names, kEverybody);
  int num_calls = 0;
  for (const std::string& method : methods(secure.local())) {
    const auto expected = kExpected.find(method);
    if (expected == kExpected.end()) {
      ADD_FAILURE() << method << " is expected of nobody: add a row to this test";
      continue;
    }
    for (const Caller& caller : all) {
      check(caller, method, expected->second,
            call(caller, method, *request_of(method, expected->second.request, job)));
      ++num_calls;
    }
  }
  EXPECT_EQ(num_calls, static_cast<int>(kExpected.size() * kEverybody.size()));
}

TEST(AccessMatrix, WhatOthersServeIsNotServedHere) {
  SecureService secure;
  for (const Caller& caller : {secure.local(), secure.with_token("nobody", "")}) {
    const grpc::Status status = call(caller, "tessera.v1.RewardService/Score", v1::Job());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
}

TEST(AccessMatrix, ListsHoldWhatTheCallerMaySee) {
  SecureService secure;
  std::map<std::string, std::string> ids;
  for (const char* project : {"a", "b"})
    ids[project] = secure.service().submit(spec_of(project)).id();
  Agent machine(secure.service(), "n1", 1);
  machine.prepare();
  const auto list = [&](const Caller& caller) {
    v1::ListJobsRequest request;
    Set listed;
    request.set_page_size(1);
    do {
      v1::ListJobsResponse response;
      const grpc::Status status = v1::Coordinator::NewStub(caller.channel)
                                      ->ListJobs(caller.context().get(), request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      for (const v1::Job& job : response.jobs()) listed.insert(job.id());
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    return listed;
  };
  const auto holder = [&](const Caller& caller) {
    v1::ListNodesResponse response;
    const grpc::Status status =
        v1::Coordinator::NewStub(caller.channel)->ListNodes(caller.context().get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.nodes(0).devices(0).job();
  };
  const Caller of_a = secure.with_token("a", secure.create_token(Credential::VIEWER, "a").secret());
  const Caller of_b = secure.with_token("b", secure.create_token(Credential::VIEWER, "b").secret());
  const auto queue = [&](const Caller& caller) {
    v1::ListQueueResponse response;
    Set queued;
    const grpc::Status status =
        v1::Coordinator::NewStub(caller.channel)->ListQueue(caller.context().get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (const v1::QueueEntry& entry : response.entries()) queued.insert(entry.job_id());
    return queued;
  };
  const auto projects = [&](const Caller& caller) {
    v1::ListProjectsResponse response;
    Set listed;
    const grpc::Status status = v1::Coordinator::NewStub(caller.channel)
                                    ->ListProjects(caller.context().get(), {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (const v1::Project& project : response.projects()) listed.insert(project.name());
    return listed;
  };
  EXPECT_EQ(queue(of_a), Set{}) << "its job has the one device";
  EXPECT_EQ(queue(of_b), Set{ids["b"]});
  EXPECT_EQ(queue(secure.local()), Set{ids["b"]});
  EXPECT_EQ(projects(of_a), Set{"a"});
  EXPECT_EQ(projects(secure.local()), (Set{"a", "b"}));
  EXPECT_EQ(list(of_a), Set{ids["a"]});
  EXPECT_EQ(list(of_b), Set{ids["b"]});
  EXPECT_EQ(list(secure.local()), (Set{ids["a"], ids["b"]}));
  EXPECT_EQ(holder(of_a), ids["a"]);
  EXPECT_EQ(holder(of_b), "(of another project)");
}

TEST(AccessMatrix, AJobThatIsNotThereLooksLikeOneOfAnotherProject) {
  SecureService secure;
  const std::string job = secure.service().submit(spec_of("a")).id();
  const Caller of_b = secure.with_token("b", secure.create_token(Credential::VIEWER, "b").secret());
  const auto get = [&](const std::string& id) {
    v1::GetJobRequest request;
    request.set_id(id);
    return call(of_b, "tessera.v1.Coordinator/GetJob", request);
  };
  const grpc::Status there = get(job);
  const grpc::Status name = get("demo");
  const grpc::Status missing = get("missing");
  EXPECT_EQ(there.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(name.error_code(), there.error_code());
  EXPECT_EQ(missing.error_code(), there.error_code());
  EXPECT_EQ(reason_of(missing), reason_of(there));
}

TEST(AccessMatrix, ProjectsAreThoseOfNamesToo) {
  SecureService secure;
  const std::string job = secure.service().submit(spec_of("a")).id();
  const Caller of_a = secure.with_token("a", secure.create_token(Credential::VIEWER, "a").secret());
  v1::GetJobRequest request;
  v1::GetJobResponse response;
  request.set_id("demo");
  ASSERT_TRUE(v1::Coordinator::NewStub(of_a.channel)
                  ->GetJob(of_a.context().get(), request, &response)
                  .ok());
  EXPECT_EQ(response.job().id(), job);
}

TEST(AccessMatrix, ATokenOnTheSocketIsWhoItSays) {
  SecureService secure;
  const std::string secret = secure.create_token(Credential::VIEWER).secret();
  v1::ListCredentialsRequest request;
  EXPECT_TRUE(call(secure.local(), "tessera.v1.Access/ListCredentials", request).ok());
  EXPECT_EQ(reason_of(call(secure.local("Bearer " + secret), "tessera.v1.Access/ListCredentials",
                           request)),
            "ROLE");
  EXPECT_EQ(
      reason_of(call(secure.local("Basic abc"), "tessera.v1.Access/ListCredentials", request)),
      "TOKEN_INVALID");
}

}  // namespace
}  // namespace tessera::server
