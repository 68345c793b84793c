// The API as clients see it: errors with details, pages, HTTP.
#include <cstdio>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include "tests/server/service.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using v1::Job;

TEST(Api, ABrokenRuleNamesItsFieldInMessageAndDetail) {
  Service service;
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  *request.mutable_spec() = make_spec();
  request.mutable_spec()->mutable_training()->set_learning_rate(-1);
  request.mutable_spec()->mutable_model()->clear_path();
  request.set_request_id("r");
  const grpc::Status status = service.submit(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("training.learning_rate"));
  EXPECT_THAT(status.error_message(), HasSubstr("model.path"));
  const auto detail = bad_request(status);
  ASSERT_EQ(detail.field_violations_size(), 2);
  EXPECT_EQ(detail.field_violations(0).field(), "model.path");
  EXPECT_EQ(detail.field_violations(1).field(), "training.learning_rate");
}

TEST(Api, AnAgentsCheckCanRefuseASpec) {
  Service service;
  Agent agent(service, "n1", 1);
  const grpc::Status status =
      submit_while(service, make_spec(), [&] {
        agent.answer_probe([](const v1::Probe&, v1::Probed& probed) {
          v1::Failure& failure = *probed.mutable_checked()->add_violations();
          failure.set_kind(v1::Failure::USER);
          failure.set_field("data.train");
          failure.set_message("data.train: /data/train.jsonl does not exist");
        });
      }).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "data.train: /data/train.jsonl does not exist");
  EXPECT_EQ(bad_request(status).field_violations(0).field(), "data.train");
}

TEST(Api, AJobIsAcceptedWhenNoAgentAnswersTheCheck) {
  Service service({"--check-timeout", "100ms"});
  Agent agent(service, "n1", 1);
  const Job job = service.submit(make_spec());
  std::string log;
  for (const v1::Event& event : service.events(job.id())) log += event.log().text();
  EXPECT_THAT(log, HasSubstr("accepted unchecked: node n1 did not answer within 100ms"));
}

TEST(Api, ValidateOnlyStoresNothing) {
  Service service;
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  *request.mutable_spec() = make_spec();
  request.set_validate_only(true);
  ASSERT_TRUE(service.submit(request, &response).ok());
  EXPECT_EQ(response.job().id(), "");
  EXPECT_EQ(response.job().spec().training().num_train_epochs(), 3);
  v1::ListJobsResponse list;
  grpc::ClientContext context;
  ASSERT_TRUE(service.stub().ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

TEST(Api, ARequestIdStandsForOneSpec) {
  Service service;
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse first, second;
  *request.mutable_spec() = make_spec();
  EXPECT_EQ(service.submit(request, &first).error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << "a request needs an id";
  request.set_request_id("r");
  ASSERT_TRUE(service.submit(request, &first).ok());
  ASSERT_TRUE(service.submit(request, &second).ok());
  EXPECT_EQ(first.job().id(), second.job().id());
  request.mutable_spec()->mutable_training()->set_seed(7);
  const grpc::Status status = service.submit(request, &second);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(error_info(status).domain(), "tessera");
  EXPECT_EQ(error_info(status).reason(), "REQUEST_ID_USED");
}

TEST(Api, UnknownJobsAreNotFound) {
  Service service;
  grpc::ClientContext get, cancel, watch;
  v1::GetJobRequest request;
  v1::GetJobResponse response;
  request.set_id("nobody");
  const grpc::Status status = service.stub().GetJob(&get, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(error_info(status).reason(), "JOB_NOT_FOUND");
  v1::CancelJobResponse cancelled;
  EXPECT_EQ(service.stub().CancelJob(&cancel, {}, &cancelled).error_code(),
            grpc::StatusCode::NOT_FOUND);
  auto stream = service.stub().WatchJob(&watch, {});
  v1::WatchJobResponse event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(Api, ListsInPagesNewestFirst) {
  Service service;
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.insert(ids.begin(), service.submit(make_spec()).id());
  service.cancel(ids[1]);
  v1::ListJobsRequest request;
  v1::ListJobsResponse response;
  request.set_page_size(2);
  request.add_states(Job::QUEUED);
  std::vector<std::string> listed;
  do {
    grpc::ClientContext context;
    ASSERT_TRUE(service.stub().ListJobs(&context, request, &response).ok());
    for (const Job& job : response.jobs()) listed.push_back(job.id());
    request.set_page_token(response.next_page_token());
  } while (!response.next_page_token().empty());
  ids.erase(ids.begin() + 1);
  EXPECT_EQ(listed, ids);
  request.set_page_token("nonsense");
  grpc::ClientContext context;
  EXPECT_EQ(service.stub().ListJobs(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(Api, MetricsPassPromtool) {
  Service service;
  const Job job = service.submit(make_spec());
  Agent agent(service, "n1", 2);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  agent.step(run, 0, 4);
  v1::TrainerEvent memory;
  memory.mutable_memory()->set_rss_bytes(1000);
  memory.mutable_memory()->add_owners()->set_owner("parameters");
  memory.mutable_memory()->mutable_owners(0)->set_current_bytes(640);
  memory.mutable_memory()->mutable_owners(0)->set_at_peak_bytes(320);
  memory.mutable_memory()->add_host_owners()->set_owner("optimizer");
  memory.mutable_memory()->mutable_host_owners(0)->set_current_bytes(1280);
  memory.mutable_memory()->set_device_limit_bytes(4096);
  memory.mutable_memory()->set_unattributed_at_peak_bytes(3);
  memory.mutable_memory()->mutable_device_allocator()->set_reserved_bytes(2048);
  memory.mutable_memory()->mutable_device_allocator()->set_fragmentation(0.25);
  agent.event(run, 0, memory);
  httplib::Client http("127.0.0.1", service.http_port());
  const auto response = http.Get("/metrics");
  ASSERT_TRUE(response);
  const std::string labels = "{job=\"" + job.id() + "\",name=\"demo\"";
  EXPECT_THAT(response->body, HasSubstr("tessera_job_step" + labels + "} 4"));
  const auto memory_is = [&](const char* name, const char* more, const char* value) {
    EXPECT_THAT(response->body, HasSubstr("tessera_job_" + (name + labels) + ",rank=\"0\"" + more +
                                          "} " + value + "\n"));
  };
  const char* parameters = ",space=\"device\",owner=\"parameters\"";
  memory_is("memory_bytes", parameters, "640");
  memory_is("memory_at_peak_bytes", parameters, "320");
  memory_is("memory_bytes", ",space=\"host\",owner=\"optimizer\"", "1280");
  memory_is("memory_limit_bytes", "", "4096");
  memory_is("memory_unattributed_at_peak_bytes", "", "3");
  memory_is("device_reserved_bytes", "", "2048");
  memory_is("device_fragmentation_ratio", "", "0.25");
  EXPECT_THAT(response->body, HasSubstr("tessera_jobs{state=\"running\"} 1"));
  EXPECT_THAT(response->body, HasSubstr("tessera_devices{kind=\"cpu\",state=\"held\"} 1"));
  EXPECT_THAT(response->body, HasSubstr("tessera_rpc_requests_total{"));
  const std::filesystem::path file = service.directory() / "metrics";
  std::ofstream(file) << response->body;
  EXPECT_EQ(std::system((PROMTOOL " check metrics < " + file.string()).c_str()), 0);
}

}  // namespace
}  // namespace tessera::server
