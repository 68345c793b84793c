// Rewards that are rules, and how a job is told that one cannot be kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/worker/rewards/support.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

nlohmann::json trl_fixtures() {
  std::ifstream file(std::filesystem::path(TESSERA_REWARD_FIXTURES) / "trl.json");
  return nlohmann::json::parse(file);
}

std::string error_of(const v1::JobSpec& spec) {
  try {
    check_judge(spec, 0);
  } catch (const UserError& error) {
    return error.field() + "|" + error.what();
  }
  return "";
}

struct Answer {
  const char* given;
  const char* record;
  float score;
};

TEST(ExactAnswer, IsThatOfTheRecord) {
  const v1::JobSpec spec = job_of([](auto& func) { func.mutable_exact_answer(); });
  for (const Answer& answer : {
           Answer{"42", R"({"answer": "42"})", 1},
           Answer{" 42\n", R"({"answer": "42 "})", 1},
           Answer{"42", R"({"answer": 42})", 1},
           Answer{"42.0", R"({"answer": 42})", 0},
           Answer{"Paris", R"({"answer": "paris"})", 0},
           Answer{"the answer is 42", R"({"answer": "42"})", 0},
           Answer{"42", R"({"answer": null})", NAN},
           Answer{"42", R"({"answer": ["42"]})", NAN},
           Answer{"42", R"({"solution": "42"})", NAN},
       }) {
    const float given = score(spec, completion_of(answer.given, answer.record));
    EXPECT_TRUE(given == answer.score || (std::isnan(given) && std::isnan(answer.score)))
        << answer.given << " " << answer.record << " " << given;
  }
}

TEST(ExactAnswer, IsTheFirstGroupOfTheLastMatch) {
  const v1::JobSpec spec = job_of([](auto& func) {
    func.mutable_exact_answer()->set_pattern(R"(#### (\S+)|nothing)");
    func.mutable_exact_answer()->set_answer_field("solution");
  });
  const char* record = R"({"solution": "7"})";
  EXPECT_EQ(score(spec, completion_of("#### 3, no: #### 7", record)), 1);
  EXPECT_EQ(score(spec, completion_of("#### 7, no: #### 3", record)), 0);
  EXPECT_EQ(score(spec, completion_of("7", record)), 0);
  EXPECT_EQ(score(spec, completion_of("#### 7, no: nothing", record)), 0);
}

TEST(ExactAnswer, ComparesNumbersByValue) {
  const v1::JobSpec spec =
      job_of([](auto& func) { func.mutable_exact_answer()->set_numeric(true); });
  const auto same = [&](const char* given, const char* record) {
    return score(spec, completion_of(given, record)) == 1;
  };
  EXPECT_TRUE(same("1,000", R"({"answer": "1000.0"})"));
  EXPECT_TRUE(same("1e3", R"({"answer": 1000})"));
  EXPECT_TRUE(same("0.50", R"({"answer": 0.5})"));
  EXPECT_TRUE(same("-0", R"({"answer": 0})"));
  EXPECT_FALSE(same("9007199254740993", R"({"answer": 9007199254740992})"));
  EXPECT_FALSE(same("10,00", R"({"answer": 1000})"));
  EXPECT_FALSE(same("", R"({"answer": 0})"));
  EXPECT_TRUE(same("Paris", R"({"answer": "Paris"})")) << "an answer that is no number is text";
}

TEST(ExactAnswer, CanIgnoreCase) {
  const v1::JobSpec spec =
      job_of([](auto& func) { func.mutable_exact_answer()->set_ignore_case(true); });
  EXPECT_EQ(score(spec, completion_of("STRASSE", R"({"answer": "Straße"})")), 1);
  EXPECT_EQ(score(spec, completion_of("ÉTÉ", R"({"answer": "été"})")), 1);
  EXPECT_EQ(score(spec, completion_of("ete", R"({"answer": "été"})")), 0);
}

TEST(ExactAnswer, NeedsAGroupThatIsTheAnswer) {
  EXPECT_EQ(error_of(job_of([](auto& func) { func.mutable_exact_answer()->set_pattern("x"); })),
            "reward_funcs[0].exact_answer.pattern|reward_funcs[0].exact_answer.pattern is \"x\", "
            "must hold a group, (...), that is the answer");
}

TEST(Regex, MatchesAnyPartOrAll) {
  const auto job = [](bool full_match) {
    return job_of([&](auto& func) {
      func.mutable_regex()->set_pattern("a.c");
      func.mutable_regex()->set_full_match(full_match);
    });
  };
  EXPECT_EQ(score(job(false), completion_of("xabcx")), 1);
  EXPECT_EQ(score(job(true), completion_of("xabcx")), 0);
  EXPECT_EQ(score(job(true), completion_of("abc")), 1);
  EXPECT_EQ(score(job(true), completion_of("abc\n")), 0);
  EXPECT_EQ(score(job(true), completion_of("aéc")), 1) << "a character, not a byte";
  EXPECT_EQ(score(job(false), completion_of("\xff"
                                            "abc")),
            1)
      << "beside what is no UTF-8";
}

TEST(Regex, GivesUpOnAPatternThatBacktracksWithoutEnd) {
  const v1::JobSpec spec = job_of([](auto& func) { func.mutable_regex()->set_pattern("(a+)+$"); });
  EXPECT_TRUE(std::isnan(score(spec, completion_of(std::string(5000, 'a') + "b"))));
  EXPECT_EQ(score(spec, completion_of(std::string(5000, 'a'))), 1);
}

TEST(Regex, ThatIsMalformedIsNamed) {
  EXPECT_EQ(error_of(job_of([](auto& func) { func.mutable_regex()->set_pattern("("); })),
            "reward_funcs[0].regex.pattern|reward_funcs[0].regex.pattern is \"(\": missing closing "
            "parenthesis at offset 1");
}

TEST(Format, OfThinkingIsTrls) {
  const v1::JobSpec spec = job_of([](auto& func) { func.mutable_format(); });
  const nlohmann::json cases = trl_fixtures()["think_format_reward"];
  EXPECT_GT(cases.size(), 100u);
  for (const auto& row : cases)
    EXPECT_EQ(score(spec, completion_of(row[0])), row[1].get<float>()) << row;
}

TEST(Format, HasEachElementInTurn) {
  const auto job = [](bool text_after) {
    return job_of([&](auto& func) {
      func.mutable_format()->add_tags("think");
      func.mutable_format()->add_tags("answer");
      func.mutable_format()->set_text_after(text_after);
    });
  };
  const std::string good = "<think>a\n</think>\n<answer>b</answer>";
  EXPECT_EQ(score(job(false), completion_of(good)), 1);
  EXPECT_EQ(score(job(false), completion_of(good + "\n ")), 1);
  EXPECT_EQ(score(job(false), completion_of(good + " so")), 0);
  EXPECT_EQ(score(job(true), completion_of(good + " so")), 1);
  EXPECT_EQ(score(job(true), completion_of(good + good)), 0) << "each once";
  EXPECT_EQ(score(job(true), completion_of("<think>a</think>so<answer>b</answer>")), 0);
  EXPECT_EQ(score(job(true), completion_of("<answer>b</answer><think>a</think>")), 0);
  EXPECT_EQ(score(job(true), completion_of("<think>a</think><answer>b")), 0);
}

float length_score(int most, int cache, size_t length, int least = 0) {
  const std::vector<int32_t> tokens(length, 1);
  JudgedCompletion completion = completion_of("");
  completion.completion_ids = tokens;
  return score(job_of([&](auto& func) {
                 if (most > 0) func.mutable_length()->set_max_tokens(most);
                 func.mutable_length()->set_soft_punish_cache(cache);
                 func.mutable_length()->set_min_tokens(least);
               }),
               completion);
}

TEST(Length, BeyondIsPunishedAsTrlDoes) {
  for (const auto& row : trl_fixtures()["get_soft_overlong_punishment"])
    EXPECT_FLOAT_EQ(length_score(row[0], row[1], row[2]), row[3].get<float>()) << row;
}

TEST(Length, HasALowerBound) {
  EXPECT_EQ(length_score(10, 0, 2, 3), -1);
  EXPECT_EQ(length_score(10, 0, 3, 3), 0);
}

TEST(Length, EndsAtTheMethodsLongestWhereItSaysNone) {
  EXPECT_EQ(length_score(0, 0, 20), 0);
  EXPECT_EQ(length_score(0, 0, 21), -1);
}

class Schema : public ::testing::Test {
 protected:
  v1::JobSpec job(const std::string& schema) const {
    std::ofstream(path_) << schema;
    return job_of([&](auto& func) { func.mutable_json_schema()->set_schema(path_); });
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = ::testing::TempDir() + "schema-" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name() +
                            ".json";
};

constexpr const char* kPerson = R"({
  "type": "object",
  "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
  "required": ["name"], "additionalProperties": false})";

TEST_F(Schema, AllowsTheLastCodeBlockOrAllOfTheText) {
  const v1::JobSpec spec = job(kPerson);
  EXPECT_EQ(score(spec, completion_of(R"( {"name": "Ada", "age": 36} )")), 1);
  EXPECT_EQ(score(spec, completion_of(R"({"name": "Ada", "age": -1})")), 0);
  EXPECT_EQ(score(spec, completion_of("Here: {\"name\": \"Ada\"}")), 0);
  EXPECT_EQ(score(spec, completion_of("```\n{}\n```\nNo:\n```json\n{\"name\": \"Ada\"}\n```\n")),
            1);
  EXPECT_EQ(score(spec, completion_of("```json\n{\"name\": \"Ada\"}\n```\nor\n```\n{}\n```")), 0);
  EXPECT_EQ(score(spec, completion_of("{\"name\": \"A")), 0);
}

TEST_F(Schema, MayTakeTheTextAsItIs) {
  v1::JobSpec spec = job(kPerson);
  spec.mutable_reward_funcs(0)->mutable_json_schema()->set_in_code_block(false);
  EXPECT_EQ(score(spec, completion_of("```\n{\"name\": \"Ada\"}\n```")), 0);
  EXPECT_EQ(score(spec, completion_of("{\"name\": \"Ada\"}")), 1);
}

TEST_F(Schema, ThatIsNoneIsNamed) {
  EXPECT_THAT(error_of(job("{")), HasSubstr(": is not JSON"));
  EXPECT_THAT(error_of(job(R"({"properties": {"a": {"type": "text"}}})")),
              HasSubstr(": #/properties/a is no schema of draft 7"));
  v1::JobSpec missing = job(kPerson);
  missing.mutable_reward_funcs(0)->mutable_json_schema()->set_schema("/nowhere/s.json");
  EXPECT_THAT(error_of(missing), HasSubstr("reward_funcs[0].json_schema.schema|"));
  EXPECT_THAT(error_of(missing), HasSubstr("/nowhere/s.json"));
}

TEST(Judges, GiveARowOfEachCompletion) {
  v1::JobSpec spec = job_of([](auto& func) { func.mutable_regex()->set_pattern("a"); });
  spec.add_reward_funcs()->mutable_model()->set_path("/models/reward");
  spec.add_reward_funcs()->mutable_regex()->set_pattern("b");
  const JudgedCompletion completions[] = {completion_of("a"), completion_of("b")};
  int num_signs = 0;
  Judges judges(spec, {.job_id = "job", .alive = [&] { ++num_signs; }});
  const std::vector<float> scores = judges.judge(completions, 3);
  ASSERT_EQ(scores.size(), 6u);
  EXPECT_EQ(scores[0], 1);
  EXPECT_TRUE(std::isnan(scores[1])) << "a model judges elsewhere";
  EXPECT_EQ(scores[2], 0);
  EXPECT_EQ(scores[3], 0);
  EXPECT_EQ(scores[5], 1);
  EXPECT_GT(num_signs, 0);
  EXPECT_TRUE(judges.judge({}, 4).empty());
}

TEST(Judges, NeedTheProgramThatAsksServers) {
  const v1::JobSpec spec =
      job_of([](auto& func) { func.mutable_server()->set_address("127.0.0.1:1"); });
  EXPECT_THROW(Judges(spec, {.job_id = "job"}, "/nowhere/tessera-rewards"), UserError);
}

}  // namespace
}  // namespace tessera
