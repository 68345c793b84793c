// What clients ask about jobs and documents without submitting any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "tests/server/answers.h"
#include "tests/server/service.h"

namespace tessera::server {
namespace {

// The answer to a PlanJob while `machine` plays the agents.
struct Planned {
  grpc::Status status;
  v1::PlanJobResponse response;
};
Planned plan_while(Service& service, const v1::JobSpec& spec,
                   const std::function<void()>& machine) {
  const std::jthread thread(machine);
  grpc::ClientContext context;
  v1::PlanJobRequest request;
  Planned planned;
  *request.mutable_plan()->mutable_spec() = spec;
  planned.status = service.stub().PlanJob(&context, request, &planned.response);
  return planned;
}

TEST(Plan, IsMadeByAnAgentAndComparedWithTheNodes) {
  Service service;
  Agent agent(service, "n1", 2);
  const auto [status, response] =
      plan_while(service, make_spec(), [&] { answer_plan(agent, 60 * kMiB); });
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.plan().choice().rehearsal().peak_bytes(), 60 * kMiB);
  ASSERT_EQ(response.devices_size(), 1);
  EXPECT_EQ(response.devices(0).num_devices(), 2);
  EXPECT_EQ(response.devices(0).obstacle(), "a rank needs 100.0 MiB") << "the node has no memory";
}

TEST(Plan, CountsWithTheDevicesAsASubmittedJobDoes) {
  Service service;
  Agent gpus(service, "a", devices(1, "cuda", "Tesla V100", 16 * 1024 * kMiB));
  Agent cpus(service, "b", devices(2, "cpu", "", 500 * kMiB));
  v1::PlanRequest asked;
  const grpc::Status status = plan_while(service, make_spec(/*num_processes=*/2), [&] {
                                asked = answer_plan(cpus, 60 * kMiB);
                              }).status;
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(asked.device_memory(), std::to_string(500 * kMiB)) << "a rank's share";
  EXPECT_EQ(asked.device_model(), "cpu");
  EXPECT_EQ(asked.peak_ratio(), 1);
}

TEST(Plan, NeedsAnAgentAndAGoodSpec) {
  Service service;
  EXPECT_EQ(plan_while(service, make_spec(), [] {}).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::JobSpec bad = make_spec();
  bad.clear_model();
  EXPECT_EQ(plan_while(service, bad, [] {}).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

grpc::Status profile(Service& service, const v1::InspectRequest& inspect,
                     v1::ProfileDataResponse& response) {
  grpc::ClientContext context;
  v1::ProfileDataRequest request;
  *request.mutable_inspect() = inspect;
  return service.stub().ProfileData(&context, request, &response);
}

// Nothing but documents.
v1::InspectRequest documents() {
  v1::InspectRequest request;
  request.set_max_documents(5);
  request.mutable_profile();
  request.mutable_spec()->mutable_data()->add_train("/data/train.jsonl");
  request.mutable_spec()->mutable_method()->mutable_sft();
  return request;
}

TEST(Profile, IsMadeByAnAgent) {
  Service service;
  Agent agent(service, "n1", 1);
  v1::ProfileDataResponse response;
  grpc::Status status;
  {
    const std::jthread machine([&] {
      agent.answer_probe([](const v1::Probe& probe, v1::Probed& probed) {
        probed.mutable_profiled()->set_num_documents(probe.profile().max_documents());
      });
    });
    status = profile(service, documents(), response);
  }
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.profile().num_documents(), 5);
}

TEST(Profile, NeedsGoodDocuments) {
  Service service;
  v1::ProfileDataResponse response;
  v1::InspectRequest bad = documents();
  bad.clear_profile();
  EXPECT_EQ(profile(service, bad, response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  bad = documents();
  bad.mutable_spec()->mutable_data()->clear_train();
  grpc::Status status = profile(service, bad, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_EQ(bad_request(status).field_violations_size(), 1) << "all else is not asked for";
  EXPECT_EQ(bad_request(status).field_violations(0).field(), "data.train");
  bad = documents();
  bad.mutable_spec()->mutable_method()->mutable_sft()->set_max_length(-1);
  EXPECT_EQ(bad_request(profile(service, bad, response)).field_violations(0).field(),
            "method.sft.max_length");
}

}  // namespace
}  // namespace tessera::server
