// Servers that judge: what they are asked, and what becomes of a job when they fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <limits>
#include <optional>
#include <set>
#include <system_error>

#include "tests/worker/rewards/scripted_server.h"
#include "tests/worker/rewards/support.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

grpc::Status score_by_length(const v1::ScoreRequest& request, v1::ScoreResponse& response) {
  for (const v1::CompletionToJudge& completion : request.completions())
    response.add_scores()->set_value(static_cast<double>(completion.completion().size()));
  return grpc::Status::OK;
}

grpc::Status give(v1::ScoreResponse& response, int count, double value) {
  for (int i = 0; i < count; ++i) response.add_scores()->set_value(value);
  return grpc::Status::OK;
}

class Servers : public ::testing::Test {
 protected:
  Servers()
      : path_(std::filesystem::temp_directory_path() / ("rewards-" + std::to_string(getpid()))) {}
  ~Servers() override { std::filesystem::remove(path_); }

  std::string address() const { return "unix://" + path_.string(); }

  v1::JobSpec job(const std::function<void(v1::RewardServer&)>& set = [](auto&) {}) const {
    return job_of([&](v1::RewardFunc& func) {
      func.mutable_server()->set_address(address());
      set(*func.mutable_server());
    });
  }

  void start(ScriptedServer::Script script) { server_.emplace(address(), std::move(script)); }

  // Scores of completions "x", "xx" ...
  std::vector<float> judge(const v1::JobSpec& spec, int count) {
    std::vector<std::string> texts;
    for (int i = 1; i <= count; ++i) texts.emplace_back(static_cast<size_t>(i), 'x');
    std::vector<JudgedCompletion> completions;
    for (const std::string& text : texts) completions.push_back(completion_of(text, R"({"n": 1})"));
    Judges judges(spec,
                  {.job_id = "job",
                   .on_waiting =
                       [this](const std::string& reason) {
                         reasons_.push_back(reason);
                         if (on_waiting_) on_waiting_();
                       },
                   .alive = [this] { ++num_signs_; }},
                  TESSERA_REWARDS);
    return judges.judge(completions, 7);
  }

  std::string error_of(const v1::JobSpec& spec) {
    try {
      judge(spec, 2);
    } catch (const UserError& error) {
      EXPECT_EQ(error.field(), "reward_funcs[0].server");
      return error.what();
    }
    return "";
  }

  std::string prefix() const {
    return "reward_funcs[0].server.address is \"" + address() + "\", whose server ";
  }

  const std::filesystem::path path_;
  std::optional<ScriptedServer> server_;
  std::vector<std::string> reasons_;
  std::function<void()> on_waiting_;
  int num_signs_ = 0;
};

TEST_F(Servers, AreAskedInBatches) {
  start(
      [](int, auto&, auto& request, auto& response) { return score_by_length(request, response); });
  const v1::JobSpec spec = job([](auto& server) {
    server.set_max_batch_size(3);
    server.set_max_concurrent_calls(2);
  });
  EXPECT_THAT(judge(spec, 7), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  std::multiset<int> sizes;
  std::set<std::string> ids;
  for (const v1::ScoreRequest& request : server_->requests()) {
    sizes.insert(request.completions_size());
    ids.insert(request.request_id());
    EXPECT_EQ(request.job_id(), "job");
    EXPECT_EQ(request.step(), 7);
    EXPECT_EQ(request.reward_func(), "it");
    EXPECT_EQ(request.completions(0).record().fields().at("n").number_value(), 1);
  }
  EXPECT_THAT(sizes, ElementsAre(1, 3, 3));
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_LE(server_->most_at_once(), 2);
  EXPECT_TRUE(reasons_.empty());
  EXPECT_GT(num_signs_, 0);
}

TEST_F(Servers, GetTokensAndTextThatIsValid) {
  start([](int, auto&, auto&, auto& response) { return give(response, 1, 0.5); });
  const std::vector<int32_t> prompt{1, 2}, tokens{3};
  const JudgedCompletion completion{.prompt = "<s>?",
                                    .completion = "a\xff",
                                    .prompt_ids = prompt,
                                    .completion_ids = tokens,
                                    .truncated = true,
                                    .record = R"({"answer": ["é", null]})"};
  EXPECT_EQ(Judges(job(), {.job_id = "job"}, TESSERA_REWARDS).judge({&completion, 1}, 0).at(0),
            0.5f);
  const v1::CompletionToJudge asked = server_->requests().at(0).completions(0);
  EXPECT_EQ(asked.prompt(), "<s>?");
  EXPECT_EQ(asked.completion(), "a\xef\xbf\xbd");
  EXPECT_THAT(asked.prompt_ids(), ElementsAre(1, 2));
  EXPECT_THAT(asked.completion_ids(), ElementsAre(3));
  EXPECT_TRUE(asked.truncated());
  EXPECT_EQ(asked.record().fields().at("answer").list_value().values(0).string_value(), "é");
}

TEST_F(Servers, GetIntegersThatAreNoDoublesAsText) {
  start([](int, auto&, auto& request, auto& response) {
    return give(response, request.completions_size(), 1);
  });
  const char* wide[] = {R"({"n":[{"id":9007199254740993}]})", R"({"n":-9007199254740993})",
                        R"({"n":18446744073709551615})"};
  const char* narrow[] = {R"({"n":9007199254740992})", R"({"n":-9007199254740992})",
                          R"({"n":1e300,"text":"9007199254740993"})"};
  std::vector<JudgedCompletion> completions;
  for (const auto& records : {wide, narrow}) {
    for (int i = 0; i < 3; ++i) completions.push_back({.record = records[i]});
  }
  Judges(job(), {.job_id = "job"}, TESSERA_REWARDS).judge(completions, 0);
  int num_asked = 0;
  for (const v1::ScoreRequest& request : server_->requests()) {
    for (const v1::CompletionToJudge& asked : request.completions()) {
      const bool is_wide = std::ranges::count(wide, asked.record_json()) > 0;
      EXPECT_EQ(asked.has_record_json(), is_wide) << asked.ShortDebugString();
      num_asked += is_wide ? 1 : 0;
    }
  }
  EXPECT_EQ(num_asked, 3);
}

TEST_F(Servers, AbsentScoresAreNotScorable) {
  start([](int, auto&, auto&, auto& response) {
    response.add_scores();
    response.add_scores()->set_value(0);
    return grpc::Status::OK;
  });
  const std::vector<float> scores = judge(job(), 2);
  EXPECT_TRUE(std::isnan(scores.at(0)));
  EXPECT_EQ(scores.at(1), 0);
}

TEST_F(Servers, ThatFailAreAskedTheSameAgain) {
  start([](int call, auto&, auto& request, auto& response) {
    if (call == 0) return grpc::Status(grpc::StatusCode::INTERNAL, "KeyError: 'answer'");
    return score_by_length(request, response);
  });
  EXPECT_THAT(judge(job(), 2), ElementsAre(1, 2));
  const std::vector<v1::ScoreRequest> requests = server_->requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].request_id(), requests[1].request_id());
  EXPECT_THAT(reasons_,
              ElementsAre(prefix() + "does not answer (INTERNAL: KeyError: 'answer'); it is asked "
                                     "again for up to 3600 seconds",
                          ""));
}

TEST_F(Servers, MayComeLater) {
  on_waiting_ = [this] {
    if (server_) return;
    start([](int, auto&, auto& request, auto& response) {
      return score_by_length(request, response);
    });
  };
  EXPECT_THAT(judge(job(), 2), ElementsAre(1, 2));
  ASSERT_EQ(reasons_.size(), 2u);
  EXPECT_THAT(reasons_[0], StartsWith(prefix() + "does not answer (UNAVAILABLE: "));
  EXPECT_EQ(reasons_[1], "");
}

TEST_F(Servers, ThatAreSlowAreAskedAgainAfterTheDeadline) {
  std::promise<void> asked_again;
  start([&](int call, auto&, auto& request, auto& response) {
    if (call == 0) asked_again.get_future().wait();
    if (call == 1) asked_again.set_value();
    return score_by_length(request, response);
  });
  EXPECT_THAT(judge(job([](auto& server) { server.set_timeout_seconds(0.2); }), 2),
              ElementsAre(1, 2));
  ASSERT_EQ(reasons_.size(), 2u);
  EXPECT_THAT(reasons_[0], HasSubstr("DEADLINE_EXCEEDED"));
}

TEST_F(Servers, ThatRefuseEndTheJob) {
  start([](int, auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no function \"it\"");
  });
  EXPECT_EQ(error_of(job()), prefix() + "answered INVALID_ARGUMENT: no function \"it\"");
}

TEST_F(Servers, ThatAreOthersEndTheJob) {
  start([](int, auto&, auto&, auto&) { return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, ""); });
  EXPECT_THAT(error_of(job()), HasSubstr("answered UNIMPLEMENTED"));
}

TEST_F(Servers, MustScoreEachCompletion) {
  start([](int, auto&, auto&, auto& response) { return give(response, 3, 1); });
  EXPECT_EQ(error_of(job()), prefix() + "gave 3 scores for 2 completions, must give one for each");
}

TEST_F(Servers, MustGiveFiniteScores) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::nan(""), 1e300}) {
    start([&](int, auto&, auto&, auto& response) { return give(response, 2, value); });
    EXPECT_THAT(error_of(job()), HasSubstr("must give finite ones")) << value;
  }
}

TEST_F(Servers, AreNotWaitedForWithoutEnd) {
  const v1::JobSpec spec = job([](auto& server) { server.set_max_wait_seconds(0.3); });
  EXPECT_THAT(error_of(spec), StartsWith(prefix() + "did not answer for 0.3 seconds, must do so "
                                                    "within max_wait_seconds (UNAVAILABLE: "));
  EXPECT_EQ(reasons_.size(), 1u);
}

TEST_F(Servers, WorkAtTheSameTime) {
  std::mutex mutex;
  std::condition_variable arrived;
  std::set<std::string> names;
  start([&](int, auto&, auto& request, auto& response) {
    std::unique_lock lock(mutex);
    names.insert(request.reward_func());
    arrived.notify_all();
    // Each waits for the other.
    arrived.wait(lock, [&] { return names.size() == 2; });
    return give(response, 1, request.reward_func() == "it" ? 1 : 2);
  });
  v1::JobSpec spec = job();
  *spec.add_reward_funcs() = spec.reward_funcs(0);
  spec.mutable_reward_funcs(1)->set_name("other");
  EXPECT_THAT(judge(spec, 1), ElementsAre(1, 2));
}

TEST_F(Servers, AreNotAskedByAProgramThatEnds) {
  const JudgedCompletion completion = completion_of("x");
  Judges judges(job(), {.job_id = "job"}, "/bin/false");
  EXPECT_THROW(judges.judge({&completion, 1}, 0), std::system_error);
}

}  // namespace
}  // namespace tessera
