#include "worker/data/rollout_dataset.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/data/fixtures.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RolloutsTest : public ::testing::Test {
 protected:
  DatasetOptions options(const std::string& lines, const RolloutOptions& rollouts) {
    DatasetOptions options;
    options.sources = {
        {.paths = {folder_.write("rollouts.jsonl", lines)}, .field = "data.rollouts"}};
    options.max_length = 0;
    options.vocab_size = 100;
    options.rollouts = rollouts;
    return options;
  }
  std::unique_ptr<Dataset> load(const std::string& lines, const RolloutOptions& rollouts) {
    return load_dataset(options(lines, rollouts));
  }
  std::string failure(const std::string& lines, const RolloutOptions& rollouts) {
    try {
      load(lines, rollouts);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

// Line `number`: a prompt of two tokens, and a completion of `number` + 1.
std::string line(int number, const std::string& more = "") {
  std::string completion = std::to_string(number);
  for (int i = 0; i < number; ++i) completion += ", 50";
  return R"({"prompt_ids": [90, 91], "completion_ids": [)" + completion + "]" + more + "}\n";
}

std::string lines(int count, const std::string& more = "") {
  std::string all;
  for (int i = 0; i < count; ++i) all += line(i, more);
  return all;
}

TEST_F(RolloutsTest, MakesADocumentOfPromptAndCompletion) {
  const auto dataset = load(line(2, R"(, "env_mask": [1, 0, 1])"), {});
  ASSERT_EQ(dataset->size(), 1);
  const Row row = dataset->row(0);
  EXPECT_THAT(row.tokens, ElementsAre(90, 91, 2, 50, 50));
  EXPECT_THAT(row.loss_mask, ElementsAre(0, 0, 1, 0, 1));
  EXPECT_THAT(row.lengths, ElementsAre(5));
  EXPECT_EQ(dataset->num_labels(0), 2);
  EXPECT_EQ(dataset->num_tokens(0), 5);
}

TEST_F(RolloutsTest, GoesThroughEachGenerationAsOftenAsIsAsked) {
  const auto dataset =
      load(lines(7), {.generation_rows = 2, .num_passes = 3, .whole_generations = true});
  std::vector<int> firsts;
  for (int64_t i = 0; i < dataset->size(); ++i) firsts.push_back(dataset->row(i).tokens[2]);
  EXPECT_THAT(firsts, ElementsAre(0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5, 4, 5));
  const RolloutDataset& rollouts = *dataset->rollouts();
  EXPECT_EQ(rollouts.generation_begin(11), 6);
  EXPECT_EQ(rollouts.place(11), 1);
  const Generation generation = rollouts.generation(11);
  EXPECT_EQ(generation.size(), 2);
  EXPECT_EQ(generation.num_labels(), 3 + 4);
  EXPECT_EQ(generation.first_label(1), 3);
  EXPECT_EQ(generation.rollouts[1].completion.front(), 3);
}

TEST_F(RolloutsTest, GoesThroughThemInNumpysOrders) {
  const auto dataset =
      load(lines(17),
           {.generation_rows = 8, .num_passes = 2, .whole_generations = true, .order_seed = 42});
  std::vector<int> firsts;
  for (int64_t i = 0; i < dataset->size(); ++i) firsts.push_back(dataset->row(i).tokens[2]);
  EXPECT_THAT(firsts, ElementsAre(1, 5, 0, 7, 2, 4, 3, 6, 3, 7, 0, 4, 5, 2, 1, 6,  //
                                  8, 14, 11, 9, 12, 13, 10, 15, 13, 10, 15, 14, 8, 12, 11, 9));
  EXPECT_EQ(dataset->rollouts()->place(17), 6);
  EXPECT_EQ(dataset->rollouts()->generation(17).rollouts[6].completion.front(), 14);
}

TEST_F(RolloutsTest, FindsGroupsThatStandMixed) {
  std::string mixed;
  for (const char* group : {"7", "\"x\"", "\"x\"", "7"})
    mixed += line(0, std::string(R"(, "group": )") + group);
  const auto dataset =
      load(mixed, {.generation_rows = 4, .num_generations = 2, .whole_generations = true});
  EXPECT_THAT(dataset->rollouts()->generation(0).groups, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(dataset->rollouts()->generation(0).num_groups, 2);
  EXPECT_THAT(
      failure(mixed, {.generation_rows = 4, .num_generations = 4, .whole_generations = true}),
      HasSubstr("2 rollouts of group"));
}

// One that nothing judges loses what is lost by being cut off, too.
TEST_F(RolloutsTest, AreWorthNothingWhereTheMethodHasNoPlaceForUnjudgedOnes) {
  const std::string records = line(0, R"(, "rewards": {"a": 3})") +
                              line(1, R"(, "rewards": {"a": null})") +
                              line(2, R"(, "rewards": {"a": null}, "truncated": true)");
  RolloutOptions how{.needs_rewards = true, .truncated_penalty = 1};
  const auto worth = [&](int64_t index) {
    const auto dataset = load(records, how);
    const RolloutDataset& rollouts = *dataset->rollouts();
    return rollouts.reward(rollouts.generation(index).rollouts[0]);
  };
  EXPECT_TRUE(std::isnan(worth(1)));
  how.zero_if_unjudged = true;
  EXPECT_EQ(worth(0), 3);
  EXPECT_EQ(worth(1), 0);
  EXPECT_EQ(worth(2), -1);
}

TEST_F(RolloutsTest, PutsTheBetterOneOfAPairFirst) {
  const std::string pair = line(0, R"(, "rewards": {"a": 1, "b": 0})") +
                           line(1, R"(, "rewards": {"a": 0, "b": 3}, "truncated": true)");
  const RolloutOptions options{.pairs = true, .needs_rewards = true};
  EXPECT_THAT(load(pair, options)->row(0).lengths, ElementsAre(4, 3));
  EXPECT_THAT(load(pair, options)->row(0).values, ElementsAre(3, 1));
  RolloutOptions weighed = options;
  weighed.reward_weights = {1, 0.2};
  EXPECT_THAT(load(pair, weighed)->row(0).lengths, ElementsAre(3, 4));
  RolloutOptions penalised = options;
  penalised.truncated_penalty = 2.5;
  EXPECT_THAT(load(pair, penalised)->row(0).values, ElementsAre(1, 0.5));
}

TEST_F(RolloutsTest, LearnsNothingOfWhatWasCutOff) {
  const auto dataset = load(line(1, R"(, "truncated": true)"), {.masks_truncated = true});
  EXPECT_EQ(dataset->num_labels(0), 0);
  EXPECT_THAT(dataset->row(0).loss_mask, ElementsAre(0, 0, 0, 0));
}

TEST_F(RolloutsTest, CutsPromptsAtTheirBeginning) {
  DatasetOptions options = this->options(line(1), {});
  options.max_length = 3;
  EXPECT_THAT(load_dataset(options)->row(0).tokens, ElementsAre(91, 1, 50));
}

TEST_F(RolloutsTest, SumsRewardsByTheirWeights) {
  Rollout rollout;
  rollout.rewards = {1, NAN, 3};
  const std::vector<double> weights{2, 5, 0.5};
  EXPECT_EQ(total_reward(rollout, {}), 4);
  EXPECT_EQ(total_reward(rollout, weights), 3.5);
  rollout.rewards = {NAN};
  EXPECT_TRUE(std::isnan(total_reward(rollout, {})));
}

TEST_F(RolloutsTest, RefusesWhatDoesNotFit) {
  const RolloutOptions compared{
      .generation_rows = 4, .num_generations = 2, .whole_generations = true, .needs_rewards = true};
  EXPECT_THAT(failure(lines(3), compared), HasSubstr("holds 3 rollouts, must hold at least 4"));
  EXPECT_THAT(failure(lines(4), compared), HasSubstr("holds no \"rewards\""));
  EXPECT_THAT(failure("", compared), HasSubstr("there are no rollouts in it"));
  EXPECT_THAT(failure(line(1, R"(, "logprobs": [-1])"), {}),
              HasSubstr("\"logprobs\" must be a list as long as \"completion_ids\""));
  EXPECT_THAT(failure(line(0, R"(, "group": 1)") + line(0), {}),
              HasSubstr("there is no \"group\", and the first record has one"));
  EXPECT_THAT(
      failure(line(0, R"(, "rewards": {"a": 1})") + line(0, R"(, "rewards": {"b": 1})"), {}),
      HasSubstr("holds no \"a\""));
  EXPECT_THAT(failure(R"({"prompt_ids": [], "completion_ids": [1]})", {}),
              HasSubstr("\"prompt_ids\" is empty"));
  EXPECT_THAT(failure(R"({"prompt_ids": [1], "completion_ids": [100]})", {}),
              HasSubstr("holds token 100, and the model's vocabulary has 100"));
  RolloutOptions weighed = compared;
  weighed.reward_weights = {1, 2};
  weighed.reward_weights_field = "method.grpo.reward_weights";
  EXPECT_THAT(
      failure(lines(4, R"(, "rewards": {"a": 1})"), weighed),
      HasSubstr("method.grpo.reward_weights is a list of 2, must hold one for each of the 1"));
}

}  // namespace
}  // namespace tessera
