#include "client/cpp/client.h"

#include <future>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/client/fake_coordinator.h"
#include "tests/client/silent_proxy.h"
#include "tests/client/temp_dir.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::chrono::seconds kPatience{20};

v1::WatchJobResponse event(int64_t revision) {
  v1::WatchJobResponse response;
  response.mutable_event()->set_revision(revision);
  return response;
}

grpc::Status with_details(grpc::StatusCode code, const std::string& message,
                          const google::protobuf::Message& detail) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  status.add_details()->PackFrom(detail);
  return {code, message, status.SerializeAsString()};
}

class ClientTest : public ::testing::Test {
 protected:
  Client connect(Client::Patience patience = kPatience) {
    return std::move(*Client::connect(address_, patience));
  }

  TempDir dir_;
  std::string address_ = "unix:" + (dir_.path() / "s.sock").string();
  FakeCoordinator service_{address_};
};

TEST_F(ClientTest, SubmitKeepsItsRequestIdOverRetries) {
  std::vector<std::string> ids;
  service_.on_submit = [&](const auto& request, auto* response) {
    ids.push_back(request.request_id());
    if (ids.size() < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now");
    response->mutable_job()->set_id("a-1");
    return grpc::Status::OK;
  };
  const auto job = connect().submit({}, "the-id");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->id(), "a-1");
  EXPECT_THAT(ids, ElementsAre("the-id", "the-id", "the-id"));
}

TEST_F(ClientTest, ARefusalIsNotRetried) {
  int calls = 0;
  service_.on_submit = [&](const auto&, auto*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no");
  };
  EXPECT_TRUE(absl::IsInvalidArgument(connect().submit({}, "x").status()));
  EXPECT_EQ(calls, 1);
}

TEST_F(ClientTest, ListFollowsPagesUpToItsLimit) {
  service_.on_list = [&](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    EXPECT_THAT(request.states(), ElementsAre(v1::Job::RUNNING));
    const int first = request.page_token().empty() ? 0 : std::stoi(request.page_token());
    for (int i = first; i < first + 2; ++i) response->add_jobs()->set_id(std::to_string(i));
    response->set_next_page_token(std::to_string(first + 2));
    return grpc::Status::OK;
  };
  const auto jobs = connect().list({v1::Job::RUNNING}, 5);
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_THAT(*jobs, SizeIs(5));
  EXPECT_EQ(jobs->back().id(), "4");
}

TEST_F(ClientTest, WatchGoesOnAfterTheLastEventWhenStreamsBreak) {
  std::vector<int64_t> starts;
  service_.on_watch = [&](const v1::WatchJobRequest& request, auto* writer) {
    starts.push_back(request.start_revision());
    // Revisions of a job have gaps; every stream breaks after two events until the last one.
    const std::vector<int64_t> stored{3, 4, 10, 11, 12, 20};
    int sent = 0;
    for (const int64_t revision : stored) {
      if (revision < request.start_revision()) continue;
      if (++sent > 2) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
      writer->Write(event(revision));
    }
    return grpc::Status::OK;
  };
  std::vector<int64_t> seen;
  const auto status = connect().watch(
      {.id = "a"}, [&](const v1::Event& event) { seen.push_back(event.revision()); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(seen, ElementsAre(3, 4, 10, 11, 12, 20));
  EXPECT_THAT(starts, ElementsAre(0, 5, 12));
}

TEST_F(ClientTest, WatchSurvivesARestartOfTheService) {
  constexpr int64_t kEvents = 40;
  service_.on_watch = [&](const v1::WatchJobRequest& request, auto* writer) {
    for (int64_t revision = std::max<int64_t>(1, request.start_revision()); revision <= kEvents;
         ++revision) {
      if (!writer->Write(event(revision))) return grpc::Status::CANCELLED;
      // Every tenth event is the last one before the service is taken down.
      if (revision % 10 == 0 && revision < kEvents) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
      }
    }
    return grpc::Status::OK;
  };
  std::vector<int64_t> seen;
  std::promise<void> halfway;
  auto watching = std::async(std::launch::async, [&] {
    return connect().watch({.id = "a"}, [&](const v1::Event& event) {
      seen.push_back(event.revision());
      if (event.revision() == 15) halfway.set_value();
    });
  });
  halfway.get_future().wait();
  service_.stop();
  service_.start();
  const absl::Status status = watching.get();
  EXPECT_TRUE(status.ok()) << status;
  std::vector<int64_t> all(kEvents);
  for (int64_t i = 0; i < kEvents; ++i) all[static_cast<size_t>(i)] = i + 1;
  EXPECT_THAT(seen, ElementsAreArray(all));
}

TEST_F(ClientTest, WatchShowsNothingTwiceEvenIfTheServiceRepeatsIt) {
  service_.on_watch = [&](const v1::WatchJobRequest&, auto* writer) {
    for (const int64_t revision : {1, 2, 2, 1, 3}) writer->Write(event(revision));
    return grpc::Status::OK;
  };
  std::vector<int64_t> seen;
  EXPECT_TRUE(
      connect()
          .watch({.id = "a"}, [&](const v1::Event& event) { seen.push_back(event.revision()); })
          .ok());
  EXPECT_THAT(seen, ElementsAre(1, 2, 3));
}

TEST_F(ClientTest, StopEndsAQuietWatch) {
  std::promise<void> release;
  auto released = release.get_future().share();
  service_.on_watch = [&](const v1::WatchJobRequest&, auto* writer) {
    writer->Write(event(1));
    released.wait();
    return grpc::Status::OK;
  };
  std::stop_source source;
  const auto status = connect().watch(
      {.id = "a"}, [&](const v1::Event&) { source.request_stop(); }, source.get_token());
  release.set_value();
  service_.stop();  // The handler reads what this frame owns.
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

// Its pings find out, and a connection that is made and carries nothing is no sign of life, though
// it takes seconds to be given up. It is one of several addresses, as on one machine alone there
// are no pings. Takes 20 s of waiting.
TEST_F(ClientTest, AWatchGivesUpAServiceThatFallsSilent) {
  std::promise<void> release;
  auto released = release.get_future().share();
  service_.on_watch = [&](const v1::WatchJobRequest&, auto* writer) {
    writer->Write(event(1));
    released.wait();
    return grpc::Status::OK;
  };
  SilentProxy first(address_.substr(5)), second(address_.substr(5));
  auto client =
      Client::connect(first.address() + "," + second.address(), std::chrono::milliseconds(500));
  ASSERT_TRUE(client.ok()) << client.status();
  int seen = 0;
  const absl::Status status = client->watch({.id = "a"}, [&](const v1::Event&) {
    ++seen;
    first.be_silent();
    second.be_silent();
  });
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(seen, 1);
  release.set_value();
  service_.stop();  // The handler reads what this frame owns.
}

TEST_F(ClientTest, ABusyServiceIsAskedAgainWhenItSays) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_nanos(1'000'000);
  int calls = 0;
  service_.on_get = [&](const auto&, auto* response) {
    if (++calls < 3) return with_details(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy", retry);
    response->mutable_job()->set_id("a-1");
    return grpc::Status::OK;
  };
  const auto job = connect({}).get("a");
  ASSERT_TRUE(job.ok()) << "no patience is needed for what the service puts off: " << job.status();
  EXPECT_EQ(calls, 3);
  // Longer than it is believed for.
  retry.mutable_retry_delay()->set_seconds(3600);
  calls = 0;
  EXPECT_TRUE(absl::IsResourceExhausted(connect({}).get("a").status()));
  EXPECT_EQ(calls, 1);
}

TEST_F(ClientTest, WithoutPatienceAMissingServiceIsToldAtOnce) {
  service_.stop();
  Client impatient = connect({});
  EXPECT_TRUE(absl::IsUnavailable(impatient.get("a").status()));
  EXPECT_TRUE(absl::IsUnavailable(impatient.watch({.id = "a"}, [](const v1::Event&) {})));
}

// Two coordinators: the first answers as a standby does, or as a test says.
class SeveralTest : public ClientTest {
 protected:
  SeveralTest() {
    service_.on_get = [this](const auto&, auto*) {
      ++asked_first_;
      return answer_of("STANDBY");
    };
    leader_.on_get = [this](const auto&, auto* response) {
      ++asked_leader_;
      response->mutable_job()->set_id("a-1");
      return grpc::Status::OK;
    };
    service_.on_watch = [](const auto&, auto*) { return answer_of("STANDBY"); };
    leader_.on_watch = [](const auto&, auto* writer) {
      writer->Write(event(7));
      return grpc::Status::OK;
    };
  }

  static grpc::Status answer_of(const std::string& reason) {
    google::rpc::ErrorInfo info;
    info.set_reason(reason);
    return with_details(grpc::StatusCode::UNAVAILABLE, reason, info);
  }

  std::string second_ = "unix:" + (dir_.path() / "t.sock").string();
  FakeCoordinator leader_{second_};
  int asked_first_ = 0, asked_leader_ = 0;
  // Without patience: to find the leader takes none.
  Client client_ = std::move(*Client::connect(address_ + "," + second_, {}));
};

TEST_F(SeveralTest, CallsGoToTheLeaderOnceItIsFound) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client_.get("a").ok());
  EXPECT_EQ(asked_first_, 1);
  EXPECT_EQ(asked_leader_, 3);
}

TEST_F(SeveralTest, AWatchFindsTheLeader) {
  std::vector<int64_t> revisions;
  const absl::Status status = client_.watch(
      {.id = "a"}, [&](const v1::Event& got) { revisions.push_back(got.revision()); });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(revisions, ElementsAre(7));
}

TEST_F(SeveralTest, OneThatIsGoneIsPassedBy) {
  service_.stop();
  EXPECT_TRUE(client_.get("a").ok());
}

TEST_F(SeveralTest, EachIsAskedOnceWhereNobodyLeads) {
  leader_.on_get = [this](const auto&, auto*) {
    ++asked_leader_;
    return answer_of("STANDBY");
  };
  EXPECT_EQ(error_reason(client_.get("a").status()), "STANDBY");
  EXPECT_EQ(asked_first_, 1);
  EXPECT_EQ(asked_leader_, 1);
}

TEST_F(SeveralTest, WhatTheLeaderSaysIsNotAskedElsewhere) {
  service_.on_get = [](const auto&, auto*) { return answer_of("NO_AGENT"); };
  EXPECT_EQ(error_reason(client_.get("a").status()), "NO_AGENT");
  EXPECT_EQ(asked_leader_, 0);
}

TEST(ConnectTest, RefusesWhatItCannotReachSafely) {
  const std::string too_long = "unix:/" + std::string(200, 'x');
  for (const char* address : {"10.0.0.1:7070", "example.com:1", "unix:", "localhost", "0.0.0.0:1",
                              too_long.c_str(), "127.0.0.1:1,10.0.0.1:2", "127.0.0.1:1,"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Client::connect(address).status())) << address;
  }
  for (const char* address :
       {"unix:/x", "127.0.0.1:7070", "localhost:1", "[::1]:80", "unix:/x,127.0.0.1:1"}) {
    EXPECT_TRUE(Client::connect(address).ok()) << address;
  }
}

TEST(ConnectTest, SendsATokenOverTlsAlone) {
  TempDir dir;
  const auto ca = dir.write("ca.pem", "-----BEGIN CERTIFICATE-----\n");
  const auto token = dir.write("token", "tsr_0123456789ab_00\n");
  const auto mistake = [](const std::string& address, const ConnectOptions& options) {
    const absl::Status status = Client::connect(address, {}, options).status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(mistake("10.0.0.1:7070", {}), HasSubstr("--ca FILE"));
  EXPECT_THAT(mistake("127.0.0.1:7070", {.ca = "", .token_file = token}), HasSubstr("--ca FILE"));
  EXPECT_EQ(mistake("10.0.0.1:7070", {.ca = ca, .token_file = token}), "");
  EXPECT_EQ(mistake("unix:/x", {.ca = "", .token_file = token}), "");
  EXPECT_THAT(mistake("h:1", {.ca = dir.path() / "none", .token_file = ""}), HasSubstr("none"));
  const auto words = dir.write("words", "my secret words");
  EXPECT_THAT(mistake("unix:/x", {.ca = "", .token_file = words}),
              testing::AllOf(HasSubstr("must hold one token"), testing::Not(HasSubstr("secret"))));
}

TEST(RequestIdTest, IsAnotherEachTime) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) ids.insert(make_request_id());
  EXPECT_THAT(ids, SizeIs(100));
  EXPECT_THAT(*ids.begin(), SizeIs(32));
}

TEST(StatusTest, DescribesEachViolation) {
  google::rpc::BadRequest detail;
  auto& first = *detail.add_field_violations();
  first.set_field("training.max_steps");
  first.set_description("training.max_steps is 0, must be above 0");
  auto& second = *detail.add_field_violations();
  second.set_field("data.train");
  second.set_description("there is no such file");
  const auto status =
      to_status(with_details(grpc::StatusCode::INVALID_ARGUMENT, "2 mistakes", detail));
  EXPECT_THAT(describe_error(status), ElementsAre("training.max_steps is 0, must be above 0",
                                                  "data.train: there is no such file"));
  EXPECT_EQ(error_reason(status), "");
}

TEST(StatusTest, KeepsTheReason) {
  google::rpc::ErrorInfo detail;
  detail.set_reason("JOB_NOT_FOUND");
  const auto status = to_status(with_details(grpc::StatusCode::NOT_FOUND, "no job x", detail));
  EXPECT_EQ(error_reason(status), "JOB_NOT_FOUND");
  EXPECT_THAT(describe_error(status), ElementsAre("no job x"));
}

TEST(StatusTest, ReadsAStatusWithoutDetailsOrWithBrokenOnes) {
  EXPECT_THAT(describe_error(to_status({grpc::StatusCode::INTERNAL, "oops"})), ElementsAre("oops"));
  EXPECT_THAT(describe_error(to_status({grpc::StatusCode::INTERNAL, "", "\xff\xff"})),
              ElementsAre(HasSubstr("INTERNAL")));
}

}  // namespace
}  // namespace tessera
