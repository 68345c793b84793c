// What is refused in records of preferences and for distillation, and what rows they become. Tokens
// and masks are compared with TRL's in compare_formats.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/data_fixture.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Preferences : public ::testing::Test {
 protected:
  DatasetOptions options_for(RecordKind kind, const std::string& lines) {
    DatasetOptions options = dataset_of({folder_.write("records.jsonl", lines)});
    options.examples.kind = kind;
    options.examples.method = "method.x";
    options.examples.has_eos_field = false;
    options.max_length_field = "method.x.max_length";
    options.reports.note = [this](const std::string& line) { notes_.push_back(line); };
    return options;
  }

  // "FIELD: message", or "" where nothing is refused.
  std::string problem(RecordKind kind, const std::string& lines) {
    return problem(options_for(kind, lines));
  }
  static std::string problem(const DatasetOptions& options) {
    try {
      load_dataset(options);
    } catch (const UserError& error) {
      return error.field() + ": " + error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  std::vector<std::string> notes_;
};

constexpr const char* kPair = R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                              "\n";

TEST_F(Preferences, NeedTheirFieldsInTheFirstRecord) {
  EXPECT_THAT(problem(RecordKind::kDpo, R"({"prompt": "a", "chosen": "b"})"),
              HasSubstr("records.jsonl:1: the first record must have \"chosen\" and \"rejected\""));
  EXPECT_THAT(problem(RecordKind::kReward, R"({"text": "a"})"), HasSubstr("\"rejected\""));
  EXPECT_THAT(problem(RecordKind::kKto, R"({"prompt": "a", "completion": "b"})"),
              HasSubstr("the first record has no \"label\""));
  EXPECT_THAT(problem(RecordKind::kKto, R"({"completion": "b", "label": true})"),
              HasSubstr("the first record has no \"prompt\""));
  EXPECT_THAT(problem(RecordKind::kGkd, R"({"text": "a"})"),
              HasSubstr("\"messages\" must be a list of messages"));
  EXPECT_THAT(problem(RecordKind::kDpo,
                      R"({"prompt": "a", "chosen": [{"role": "assistant"}], "rejected": "c"})"),
              HasSubstr("\"rejected\" must be a string, or a list of messages"));
  EXPECT_THAT(problem(RecordKind::kDpo, R"({"prompt": [], "chosen": "a", "rejected": "c"})"),
              HasSubstr("\"prompt\" must be a string, as \"chosen\" is"));
}

TEST_F(Preferences, NameTheLineOfARecordThatIsOtherwise) {
  const std::string pair = kPair;
  EXPECT_THAT(problem(RecordKind::kDpo, pair + R"({"prompt": "a", "chosen": "b"})"),
              HasSubstr("data.train: "));
  EXPECT_THAT(problem(RecordKind::kDpo, pair + R"({"prompt": "a", "chosen": "b"})"),
              HasSubstr("records.jsonl:2: there is no field \"rejected\""));
  EXPECT_THAT(problem(RecordKind::kDpo, R"({"chosen": "ab", "rejected": ""})"),
              HasSubstr("\"rejected\" is empty"));
  EXPECT_THAT(problem(RecordKind::kKto, R"({"prompt": "a", "completion": "b", "label": "yes"})"),
              HasSubstr("records.jsonl:1: \"label\" is \"yes\"; it must be true or false"));
  EXPECT_THAT(problem(RecordKind::kReward, R"({"chosen": "a", "rejected": "b", "margin": "wide"})"),
              HasSubstr("\"margin\" is \"wide\"; it must be a number"));
  EXPECT_THAT(problem(RecordKind::kReward, R"({"chosen_ids": [1], "rejected_ids": []})"),
              HasSubstr("\"rejected_ids\" has no tokens"));
  EXPECT_THAT(problem(RecordKind::kReward, R"({"chosen_ids": [1], "rejected_ids": [-1]})"),
              HasSubstr("\"rejected_ids\" holds -1, which is no token id"));
  EXPECT_THAT(problem(RecordKind::kGkd, R"({"input_ids": [1, 2], "completion_mask": [1]})"),
              HasSubstr("\"completion_mask\" must be a list as long as \"input_ids\""));
  EXPECT_THAT(problem(RecordKind::kGkd, R"({"input_ids": [1, 2], "completion_mask": [1, 1]})"),
              HasSubstr("there is no prompt before the completion"));
}

TEST_F(Preferences, NeedACommonPromptInConversations) {
  folder_.write("chat.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto chat = [](const char* first) {
    return std::string(R"([{"role": "user", "content": ")") + first +
           R"("}, {"role": "assistant", "content": "x"}])";
  };
  auto options = options_for(RecordKind::kDpo,
                             "{\"chosen\": " + chat("a") + ", \"rejected\": " + chat("b") + "}");
  EXPECT_THAT(problem(options), AllOf(HasSubstr("model.tokenizer: "), HasSubstr("give one as "
                                                                                "method.x.chat_")));
  options.examples.chat_template_path = folder_.path() / "chat.jinja";
  EXPECT_THAT(problem(options), HasSubstr("do not begin with the same messages"));
  // The order of keys, and keys without a value, make no other message.
  folder_.write("records.jsonl",
                R"({"chosen": [{"role": "user", "content": "a", "name": null}, )"
                R"({"role": "assistant", "content": "b"}], "rejected": )"
                R"([{"content": "a", "role": "user"}, {"role": "assistant", "content": "c"}]})");
  EXPECT_EQ(problem(options), "");
  folder_.write("chat.jinja", "x");
  EXPECT_THAT(problem(options), HasSubstr("\"chosen\" adds no token to the prompt"));
}

TEST_F(Preferences, SayWhatIsLeftOut) {
  const std::string long_prompt =
      R"({"prompt": "many many words of a prompt", "chosen": "b", "rejected": "c"})"
      "\n";
  auto options = options_for(RecordKind::kDpo, kPair + long_prompt);
  options.max_length = 6;
  EXPECT_EQ(load_dataset(options)->size(), 1);
  EXPECT_THAT(notes_, Contains("1 of 2 rows are left out: their prompt alone fills "
                               "method.x.max_length 6"));
  options.examples.kind = RecordKind::kReward;
  EXPECT_EQ(load_dataset(options)->size(), 1);
  EXPECT_THAT(notes_.back(), HasSubstr("a document is longer than method.x.max_length 6"));
  options.max_length = 1;
  EXPECT_THAT(problem(options), HasSubstr("records.jsonl: no row is left: a document is longer"));
}

TEST_F(Preferences, OfRewardModelsMayLackAMargin) {
  const auto dataset = load_dataset(
      options_for(RecordKind::kReward, R"({"chosen_ids": [1], "rejected_ids": [2], "margin": 1.5})"
                                       "\n"
                                       R"({"chosen_ids": [1], "rejected_ids": [2]})"));
  EXPECT_TRUE(dataset->has_values());
  EXPECT_THAT(dataset->row(0).values, ElementsAre(1.5, 1.5));
  EXPECT_THAT(dataset->row(1).values, ElementsAre(0, 0));
  EXPECT_FALSE(load_dataset(options_for(RecordKind::kReward, kPair))->has_values());
}

TEST_F(Preferences, OfAMixtureAreAlike) {
  auto options = options_for(RecordKind::kKto, kPair);
  options.sources.push_back(
      {.paths = {folder_.write("single.jsonl",
                               R"({"prompt": "a", "completion": "b", "label": false})")}});
  EXPECT_THAT(problem(options), HasSubstr("some sources of the mixture hold pairs"));
  options.sources[1].paths = {folder_.write("more.jsonl", std::string(kPair) + kPair)};
  options.stopping = StoppingStrategy::kAllExhausted;
  const auto dataset = load_dataset(options);
  const int64_t half = dataset->size() / 2;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    EXPECT_THAT(dataset->row(i).values, ElementsAre(i < half ? 1 : 0));
  }
}

TEST_F(Preferences, ReadAsManyRecordsAsAreAskedFor) {
  auto options = options_for(RecordKind::kDpo, std::string(kPair) + kPair + kPair + "no JSON");
  options.max_documents = 2;
  EXPECT_EQ(load_dataset(options)->size(), 2);
  options = options_for(RecordKind::kDpo, std::string(kPair) + kPair);
  EXPECT_EQ(load_lengths(options).size(), 4);
}

TEST_F(Preferences, AreCachedByTheMethodThatReadsThem) {
  auto options = options_for(RecordKind::kDpo, kPair);
  options.cache.directory = folder_.path() / "cache";
  load_dataset(options);
  options.examples.kind = RecordKind::kReward;
  EXPECT_TRUE(load_dataset(options)->row(0).loss_mask.empty());
  options.examples.kind = RecordKind::kKto;
  EXPECT_TRUE(load_dataset(options)->has_values());
  options.examples.kind = RecordKind::kDpo;
  notes_.clear();
  EXPECT_EQ(load_dataset(options)->documents_per_row(), 2);
  EXPECT_TRUE(notes_.empty());  // nothing was tokenised again
}

TEST_F(Preferences, ForDistillationSayThatToolsAreNotUsed) {
  folder_.write("chat.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  auto options =
      options_for(RecordKind::kGkd, R"({"messages": [{"role": "user", "content": "a"}, )"
                                    R"({"role": "assistant", "content": "b"}], "tools": []})");
  options.examples.chat_template_path = folder_.path() / "chat.jinja";
  load_dataset(options);
  EXPECT_THAT(notes_, Contains(HasSubstr("records.jsonl:1: \"tools\" is not used")));
}

}  // namespace
}  // namespace tessera
