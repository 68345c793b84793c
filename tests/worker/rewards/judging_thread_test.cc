// Judging beside other work.
#include "worker/rewards/judging_thread.h"

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/worker/rewards/scripted_server.h"
#include "tests/worker/rewards/support.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

class JudgingThreadTest : public ::testing::Test {
 protected:
  JudgingThreadTest()
      : path_(std::filesystem::temp_directory_path() / ("judging-" + std::to_string(getpid()))) {}
  ~JudgingThreadTest() override { std::filesystem::remove(path_); }

  std::string address() const { return "unix://" + path_.string(); }
  v1::JobSpec job() const {
    return job_of([&](v1::RewardFunc& func) { func.mutable_server()->set_address(address()); });
  }

  const std::filesystem::path path_;
};

TEST_F(JudgingThreadTest, GivesScoresOfWhatWasGivenBeforeThem) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  const ScriptedServer server(address(), [&](int call, auto&, auto&, auto& response) {
    gone.wait();
    response.add_scores()->set_value(call);
    return grpc::Status::OK;
  });
  JudgingThread judges(job(), "job", TESSERA_REWARDS);
  const std::vector<JudgedCompletion> a{completion_of("a")}, b{completion_of("b")};
  auto first = judges.judge(a, 1), second = judges.judge(b, 2);
  // The server answers nobody, and this thread goes on.
  EXPECT_EQ(first.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  go.set_value();
  EXPECT_THAT(first.get(), ElementsAre(0));
  EXPECT_THAT(second.get(), ElementsAre(1));
  EXPECT_EQ(server.requests().at(0).step(), 1);
  EXPECT_EQ(server.requests().at(1).step(), 2);
  EXPECT_EQ(judges.waits_for(), "");
}

TEST_F(JudgingThreadTest, GivesUpWhatNobodyWaitsFor) {
  const std::vector<JudgedCompletion> a{completion_of("a")};
  JudgingThread judges(job(), "job", TESSERA_REWARDS);
  // Nobody listens there.
  const auto scores = judges.judge(a, 1);
  EXPECT_TRUE(scores.valid());
}

TEST_F(JudgingThreadTest, HandsOnWhatAServerRefuses) {
  const ScriptedServer server(address(), [](int, auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no");
  });
  JudgingThread judges(job(), "job", TESSERA_REWARDS);
  const std::vector<JudgedCompletion> a{completion_of("a")};
  auto scores = judges.judge(a, 1);
  EXPECT_THROW(scores.get(), UserError);
}

}  // namespace
}  // namespace tessera
