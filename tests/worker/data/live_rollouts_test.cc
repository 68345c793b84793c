// Completions whose prompts are known before they are.
#include "worker/data/live_rollouts.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>

#include "tests/worker/data/data_fixture.h"
#include "worker/data/longest_rollouts.h"
#include "worker/data/prompt_order.h"
#include "worker/data/prompt_records.h"
#include "worker/data/rollout_lines.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LiveRolloutsTest : public ::testing::Test {
 protected:
  DatasetOptions options(const std::string& lines) {
    DatasetOptions options = dataset_of({folder_.write("prompts.jsonl", lines)});
    options.examples.kind = RecordKind::kPrompt;
    options.max_length = 0;
    options.rollouts = {.generation_rows = 4,
                        .num_generations = 2,
                        .num_passes = 2,
                        .whole_generations = true,
                        .needs_rewards = true,
                        .is_live = true,
                        .reward_names = {"a"},
                        .has_logprobs = true,
                        .max_completion_length = 6};
    return options;
  }

  TemporaryFolder folder_;
};

std::string prompts(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i)
    lines += R"({"prompt": ")" + std::string(i + 1, 'a') + R"(", "answer": )" + std::to_string(i) +
             "}\n";
  return lines;
}

Rollout made(int token, float reward, const char* group) {
  return {.prompt = {1},
          .completion = {token, 9},
          .logprobs = {-1, -2},
          .rewards = {reward},
          .group = group};
}

TEST_F(LiveRolloutsTest, KnowsItsRowsBeforeTheyAreMade) {
  const auto live = load_prompts(options(prompts(5)));
  // Two prompts at once, of two rows each, twice; the fifth prompt is none of a generation.
  EXPECT_EQ(live->size(), 16);
  EXPECT_EQ(live->num_generations(), 2);
  EXPECT_EQ(live->prompts_of(0), 2);
  EXPECT_EQ(live->number_of(7), 0);
  EXPECT_EQ(live->number_of(8), 1);
  EXPECT_FALSE(live->has(1));
  live->put(1, {made(5, 1, "1"), made(6, 0, "2"), made(7, 0, "1"), made(8, 1, "2")});
  ASSERT_TRUE(live->has(1));
  EXPECT_THAT(live->row(9).tokens, ElementsAre(1, 6, 9));
  EXPECT_THAT(live->row(13).tokens, ElementsAre(1, 6, 9));
  EXPECT_EQ(live->num_labels(8), 2);
  EXPECT_THAT(live->generation(8).groups, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(live->generation(8).num_labels(), 8);
  live->drop_before(2);
  EXPECT_FALSE(live->has(1));
}

TEST_F(LiveRolloutsTest, NeedsPromptsForAGeneration) {
  EXPECT_EQ(load_prompts(options(prompts(2)))->size(), 8);
  try {
    load_prompts(options(prompts(1)));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds 1 prompts, must hold at least 2"));
  }
}

// As an evaluation may have it.
TEST_F(LiveRolloutsTest, AGroupMayBeOfOne) {
  DatasetOptions alone = options(prompts(3));
  alone.rollouts->num_generations = 1;
  alone.rollouts->num_passes = 1;
  alone.rollouts->whole_generations = false;
  alone.rollouts->compares = true;
  const auto live = load_prompts(alone);
  EXPECT_EQ(live->size(), 3);
  live->put(0, {made(5, 1, "1"), made(6, 0, "2"), made(7, 0, "3")});
  EXPECT_THAT(live->generation(0).groups, ElementsAre(0, 1, 2));
}

// GKD's: the data has a completion where no model writes one.
TEST_F(LiveRolloutsTest, DocumentsMayHaveCompletions) {
  DatasetOptions documents =
      options(R"({"input_ids": [4, 5, 6, 7, 8], "completion_mask": [0, 0, 1, 1, 1]})"
              "\n"
              R"({"input_ids": [3, 2], "completion_mask": [0, 1]})"
              "\n");
  documents.examples.kind = RecordKind::kGkd;
  documents.rollouts = {
      .generation_rows = 2, .is_live = true, .has_documents = true, .max_completion_length = 2};
  const auto live = load_prompts(documents);
  EXPECT_EQ(live->longest_prompt(), 2);
  EXPECT_THAT(live->prompt(0), ElementsAre(4, 5));
  live->put(0, {live->document(0), {.prompt = {3}, .completion = {9, 9}}});
  EXPECT_THAT(live->row(0).tokens, ElementsAre(4, 5, 6, 7, 8));
  EXPECT_THAT(live->row(0).loss_mask, ElementsAre(0, 0, 1, 1, 1));
  EXPECT_EQ(live->num_labels(0), 3);
  EXPECT_THAT(live->row(1).tokens, ElementsAre(3, 9, 9));
  // The longest prompt may have the longest completion, the data's or a model's.
  const LongestRollouts longest(documents, *live);
  EXPECT_EQ(longest.num_tokens(0), 2 + 3);
  EXPECT_EQ(longest.num_tokens(1), 1 + 2);
}

TEST_F(LiveRolloutsTest, PairsMayBeUnjudged) {
  DatasetOptions pairs = options(prompts(4));
  pairs.rollouts->pairs = true;
  pairs.rollouts->num_generations = 1;
  pairs.rollouts->num_passes = 1;
  const auto live = load_prompts(pairs);
  EXPECT_EQ(live->size(), 4);
  std::vector<Rollout> all;
  for (int i = 0; i < 8; ++i) all.push_back(made(i, static_cast<float>(i), "1"));
  live->put(0, all);
  EXPECT_THAT(live->row(1).tokens, ElementsAre(1, 3, 9, 1, 2, 9));
  all[5].rewards = {std::numeric_limits<float>::quiet_NaN()};
  EXPECT_NO_THROW(live->put(0, all)) << "nothing is learnt of that pair";
}

TEST_F(LiveRolloutsTest, PromptsAreTextOrConversations) {
  const Tokenizer tokenizer(fixture("qwen"));
  const auto text = load_prompts(options(prompts(2)));
  EXPECT_EQ(tokenizer.decode(text->prompts().row(1).tokens), "aa");
  const std::string turn = R"({"prompt": [{"role": "user", "content": "hi"}]})"
                           "\n";
  DatasetOptions chats = options(turn + turn);
  chats.examples.chat_template_path = folder_.write(
      "chat.jinja",
      "{{ messages[0].content }}{% if add_generation_prompt %} assistant:{% endif %}");
  const auto chat = load_prompts(chats);
  EXPECT_THAT(tokenizer.decode(chat->prompts().row(0).tokens), HasSubstr("assistant"));
  DatasetOptions bare = options(turn);
  bare.examples.tokenizer = folder_.path() / "tokenizer";
  std::filesystem::create_directory(bare.examples.tokenizer);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    if (std::filesystem::exists(fixture("gpt2") / file))
      std::filesystem::copy_file(fixture("gpt2") / file, bare.examples.tokenizer / file);
  }
  try {
    load_prompts(bare);
    FAIL() << "a conversation was taken without a template";
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "model.tokenizer");
    EXPECT_THAT(error.what(), HasSubstr("put one there, as chat_template.jinja"));
  }
  EXPECT_THROW(load_prompts(options(R"({"prompt": ""})"
                                    "\n")),
               UserError);
  EXPECT_THROW(load_prompts(options(R"({"text": "a"})"
                                    "\n")),
               UserError);
}

TEST_F(LiveRolloutsTest, RecordsAreKeptAsTheyAre) {
  const DatasetOptions all = options(R"({"prompt": "a", "x": {"y": [1, null]}, "z": null})"
                                     "\n" +
                                     prompts(1));
  const PromptRecords records(all);
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records.of(0), R"({"prompt":"a","x":{"y":[1,null]}})");
  EXPECT_EQ(records.of(1), R"({"prompt":"a","answer":0})");
}

TEST_F(LiveRolloutsTest, TheLongestAreNoShorter) {
  const DatasetOptions all = options(prompts(4));
  const auto live = load_prompts(all);
  const LongestRollouts longest(all, *live);
  EXPECT_EQ(longest.size(), live->size());
  EXPECT_EQ(longest.num_labels(0), 6);
  // Of a pass.
  for (int64_t i = 1; i < longest.options().generation_rows; ++i)
    EXPECT_LE(longest.num_tokens(i), longest.num_tokens(i - 1));
  const Generation first = longest.generation(0);
  EXPECT_EQ(std::ssize(first.rollouts.front().prompt), live->longest_prompt());
  EXPECT_THAT(first.groups, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(LongestRollouts(all, 3, 50).num_tokens(7), 56);
}

TEST(RolloutLines, AreReadAsTheyWereWritten) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Rollout rollout{.prompt = {3, 4},
                  .completion = {5, 6},
                  .mask = {1, 0},
                  .logprobs = {-0.1f, kNan},
                  .rewards = {1.0f / 3, kNan},
                  .group = "\"1-2\"",
                  .truncated = true};
  const std::vector<std::string> names{"a", "b"};
  const std::string line = rollout_line(rollout, names);
  const std::vector<Rollout> read = parse_rollout_lines(line + line, names);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1].prompt, rollout.prompt);
  EXPECT_EQ(read[1].completion, rollout.completion);
  EXPECT_EQ(read[1].mask, rollout.mask);
  EXPECT_EQ(read[1].logprobs[0], rollout.logprobs[0]);
  EXPECT_TRUE(std::isnan(read[1].logprobs[1]));
  EXPECT_EQ(read[1].rewards[0], rollout.rewards[0]);
  EXPECT_TRUE(std::isnan(read[1].rewards[1]));
  EXPECT_EQ(read[1].group, rollout.group);
  EXPECT_TRUE(read[1].truncated);
  const std::vector<std::string> others{"c"};
  EXPECT_THROW(parse_rollout_lines(line, others), std::invalid_argument);
}

}  // namespace
}  // namespace tessera
