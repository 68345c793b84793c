#include "tests/worker/agent/agent_fixture.h"

namespace tessera::agent {
namespace {

using testing::HasSubstr;

class AgentCheckTest : public AgentTest {
 protected:
  v1::CheckResult check(const std::string& job) {
    v1::SessionResponse message;
    message.mutable_check()->set_check_id(++last_id_);
    message.mutable_check()->mutable_spec()->set_name(job);
    EXPECT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
    coordinator_->send(message);
    return await_result(last_id_);
  }

  v1::CheckResult await_result(int64_t id) {
    v1::CheckResult result;
    EXPECT_TRUE(coordinator_->await_message([&](const v1::SessionRequest& m) {
      if (!m.has_checked() || m.checked().check_id() != id) return false;
      result = m.checked().result();
      return true;
    }));
    return result;
  }

  int64_t last_id_ = 0;
};

TEST_F(AgentCheckTest, PassesOnWhatTheTrainerFinds) {
  start_agent();
  EXPECT_EQ(check("good").violations_size(), 0);
  const v1::CheckResult bad = check("bad");
  ASSERT_EQ(bad.violations_size(), 1);
  EXPECT_EQ(bad.violations(0).kind(), v1::Failure::USER);
  EXPECT_EQ(bad.violations(0).field(), "model.path");
  EXPECT_TRUE(await_gone(directory_ / "state" / "checks" / "1"));
}

TEST_F(AgentCheckTest, ReportsATrainerThatBreaks) {
  start_agent();
  const v1::CheckResult result = check("broken");
  ASSERT_EQ(result.violations_size(), 1);
  EXPECT_EQ(result.violations(0).kind(), v1::Failure::BUG);
  EXPECT_THAT(result.violations(0).message(), HasSubstr("status 4: something broke"));
}

TEST_F(AgentCheckTest, ReportsATrainerThatIsMissing) {
  trainer_ = "/nowhere/tessera-trainer";
  start_agent();
  const v1::CheckResult result = check("good");
  ASSERT_EQ(result.violations_size(), 1);
  EXPECT_THAT(result.violations(0).message(), HasSubstr("No such file"));
}

TEST_F(AgentCheckTest, AnswersEveryOneOfMany) {
  start_agent();
  ASSERT_TRUE(coordinator_->await_message([](const auto& m) { return m.has_hello(); }));
  constexpr int kChecks = 12;
  for (int id = 1; id <= kChecks; ++id) {
    v1::SessionResponse message;
    message.mutable_check()->set_check_id(id);
    message.mutable_check()->mutable_spec()->set_name(id % 2 ? "good" : "bad");
    coordinator_->send(message);
  }
  for (int id = 1; id <= kChecks; ++id) {
    EXPECT_EQ(await_result(id).violations_size(), id % 2 ? 0 : 1);
  }
}

}  // namespace
}  // namespace tessera::agent
