#include <fstream>

#include "tests/worker/agent/agent_fixture.h"
#include "worker/agent/prober.h"

namespace tessera::agent {
namespace {

using testing::HasSubstr;

class AgentProbeTest : public AgentTest {
 protected:
  v1::Probed probe(const v1::Probe& question) {
    v1::SessionResponse message;
    *message.mutable_probe() = question;
    message.mutable_probe()->set_probe_id(++last_id_);
    EXPECT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
    coordinator_->send(message);
    return await_answer(last_id_);
  }

  v1::Probed check(const std::string& job) {
    v1::Probe question;
    question.mutable_check()->set_name(job);
    return probe(question);
  }

  v1::Probed await_answer(int64_t id) {
    v1::Probed answer;
    EXPECT_TRUE(coordinator_->await_message([&](const v1::SessionRequest& m) {
      if (!m.has_probed() || m.probed().probe_id() != id) return false;
      answer = m.probed();
      return true;
    }));
    return answer;
  }

  int64_t last_id_ = 0;
};

TEST_F(AgentProbeTest, PassesOnWhatTheTrainerFinds) {
  start_agent();
  const v1::Probed good = check("good");
  ASSERT_TRUE(good.has_checked());
  EXPECT_EQ(good.checked().violations_size(), 0);
  EXPECT_EQ(good.checked().rehearsal().peak_bytes(), 1000);
  const v1::CheckResult bad = check("bad").checked();
  ASSERT_EQ(bad.violations_size(), 1);
  EXPECT_EQ(bad.violations(0).kind(), v1::Failure::USER);
  EXPECT_EQ(bad.violations(0).field(), "model.path");
  EXPECT_TRUE(await_gone(directory_ / "state" / "probes" / "1"));
}

TEST_F(AgentProbeTest, HasTheTrainerMakeAPlan) {
  start_agent();
  v1::Probe question;
  question.mutable_plan()->mutable_spec()->set_name("planned");
  question.mutable_plan()->set_world_size(8);
  const v1::Probed answer = probe(question);
  ASSERT_TRUE(answer.has_planned());
  EXPECT_EQ(answer.planned().as_written().world_size(), 8);
}

TEST_F(AgentProbeTest, ProfilesDataWithTheProgramBesideTheAgent) {
  std::filesystem::create_directories(directory_);
  const std::filesystem::path tokens = directory_ / "tokens.jsonl";
  std::ofstream(tokens) << "{\"input_ids\": [1, 2, 3]}\n";
  start_agent();
  v1::Probe question;
  question.mutable_profile()->mutable_profile();
  question.mutable_profile()->mutable_spec()->mutable_data()->add_train(tokens.string());
  question.mutable_profile()->mutable_spec()->mutable_method()->mutable_sft();
  const v1::Probed answer = probe(question);
  ASSERT_TRUE(answer.has_profiled()) << answer.failure().message();
  EXPECT_EQ(answer.profiled().num_tokens(), 3);
  question.mutable_profile()->mutable_spec()->mutable_data()->set_train(0, "/nowhere.jsonl");
  const v1::Probed missing = probe(question);
  ASSERT_TRUE(missing.has_failure());
  EXPECT_EQ(missing.failure().kind(), v1::Failure::USER);
  EXPECT_EQ(missing.failure().field(), "data.train");
}

TEST_F(AgentProbeTest, PassesOnWhatIsGeneratedInParts) {
  start_agent();
  v1::Probe question;
  for (const char* text : {"one", "two"})
    question.mutable_generate()->add_prompts()->set_text(text);
  probe(question);
  std::string text;
  EXPECT_TRUE(coordinator_->await_message(
      [&](const v1::SessionRequest& m) { return m.probed().generated().is_last(); }));
  coordinator_->await_message([&](const v1::SessionRequest& m) {
    for (const auto& reply : m.probed().generated().replies()) text += reply.text().text();
    return true;
  });
  EXPECT_EQ(text, "onetwo");
  EXPECT_TRUE(await_gone(directory_ / "state" / "probes" / "0"));
}

TEST_F(AgentProbeTest, PassesOnWhyNothingIsGenerated) {
  start_agent();
  v1::Probe question;
  question.mutable_generate()->add_prompts()->set_text("broken");
  const v1::Probed answer = probe(question);
  ASSERT_TRUE(answer.has_failure());
  EXPECT_EQ(answer.failure().field(), "prompts[0]");
}

TEST_F(AgentProbeTest, EndsWhatNobodyWaitsFor) {
  start_agent();
  v1::Probe question;
  question.mutable_generate()->add_prompts()->set_text("endless");
  EXPECT_EQ(probe(question).generated().replies(0).text().text(), "endless");
  v1::SessionResponse message;
  message.mutable_cancel_probe()->set_probe_id(last_id_);
  coordinator_->send(message);
  EXPECT_TRUE(await_gone(directory_ / "state" / "probes" / "0"));
}

TEST_F(AgentProbeTest, ReportsATrainerThatBreaks) {
  start_agent();
  const v1::Probed answer = check("broken");
  ASSERT_TRUE(answer.has_failure());
  EXPECT_EQ(answer.failure().kind(), v1::Failure::BUG);
  EXPECT_THAT(answer.failure().message(),
              HasSubstr("could not check the job: it exited with status 4: something broke"));
}

TEST_F(AgentProbeTest, ReportsATrainerThatIsMissing) {
  trainer_ = "/nowhere/tessera-trainer";
  start_agent();
  EXPECT_THAT(check("good").failure().message(), HasSubstr("No such file"));
}

TEST_F(AgentProbeTest, WhatTakesTooLongIsNoFailureOfTheJob) {
  start_agent();
  v1::Probe question;
  question.mutable_check()->set_name("endless");
  question.set_timeout_ms(50);
  EXPECT_EQ(probe(question).unanswered(), "the agent could not check the job within 0.05 s");
}

TEST_F(AgentProbeTest, QuestionsThatWaitTooLongAreLeftUnanswered) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  const auto ask = [&](const std::string& name, int timeout_ms) {
    v1::SessionResponse message;
    message.mutable_probe()->set_probe_id(++last_id_);
    message.mutable_probe()->mutable_check()->set_name(name);
    message.mutable_probe()->set_timeout_ms(timeout_ms);
    coordinator_->send(message);
    return last_id_;
  };
  for (size_t i = 0; i < Prober::kMaxRunning; ++i) ask("endless", 600'000);
  const int64_t waits = ask("good", 50);
  EXPECT_THAT(await_answer(waits).unanswered(), HasSubstr("within 0.05 s"));
  for (size_t i = 0; i < Prober::kMaxWaiting; ++i) ask("good", 600'000);
  EXPECT_THAT(await_answer(ask("good", 600'000)).unanswered(),
              HasSubstr("the agent has too many questions"));
}

TEST_F(AgentProbeTest, AnswersEveryOneOfMany) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  constexpr int kProbes = 12;
  for (int id = 1; id <= kProbes; ++id) {
    v1::SessionResponse message;
    message.mutable_probe()->set_probe_id(id);
    message.mutable_probe()->mutable_check()->set_name(id % 2 ? "good" : "bad");
    coordinator_->send(message);
  }
  for (int id = 1; id <= kProbes; ++id) {
    EXPECT_EQ(await_answer(id).checked().violations_size(), id % 2 ? 0 : 1);
  }
}

}  // namespace
}  // namespace tessera::agent
