// Reward modelling on a tiny model: by plain formulas on its scores, and over ranks.
#include <gtest/gtest.h>

#include "tests/worker/objectives/objective_job.h"
#include "worker/model/functions.h"

namespace tessera {
namespace {

using testing::deal;
using testing::expect_same_step;
using testing::fill_weights;
using testing::make_batch;
using testing::ObjectiveJob;
using testing::ObjectiveResult;
using testing::run_objective;
using testing::tiny_config;

Batch pair(int seed, int64_t chosen_tokens, int64_t rejected_tokens, float margin) {
  Batch row = make_batch(seed, {chosen_tokens, rejected_tokens});
  row.num_sequences = 2;
  row.values_S = at::full({2}, margin, at::kFloat);
  return row;
}

ObjectiveJob reward_job(double center = 0) {
  ObjectiveJob job;
  job.spec.mutable_method()->mutable_reward()->set_center_rewards_coefficient(center);
  job.spec.mutable_memory()->set_gradient_checkpointing(false);
  job.spec.mutable_training()->set_output_dir(::testing::TempDir());
  spec::fill_defaults(job.spec);
  job.microbatches = {{pair(0, 5, 3, 0), pair(1, 2, 9, 0.5F), pair(2, 4, 4, -0.25F)},
                      {pair(3, 1, 6, 1), pair(4, 8, 2, 0)}};
  return job;
}

// The scores of all pairs, from the hidden states and plain products.
at::Tensor plain_scores(const ObjectiveJob& job, const std::vector<Batch>& rows) {
  const c10::AutoGradMode no_grad(false);
  const auto group = make_single_collectives();
  TrainableModel trainable = build_model(job.spec, job.config, *group, at::kCPU);
  fill_weights(trainable, /*rank=*/0);
  std::map<std::string, at::Tensor> weights;
  for (const auto& unit : trainable.units) {
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(0)) {
      weights[slice.entry->name] =
          unit->shard().narrow(0, slice.shard_begin, slice.numel).view(slice.entry->shape);
    }
  }
  const Batch batch = deal(rows, 0, 1);
  const at::Tensor hidden_TD = trainable.model->forward(batch);
  const at::Tensor scores_T1 =
      at::mm(rms_norm(hidden_TD, weights.at("model.norm.weight"), job.config.rms_norm_eps),
             weights.at("score.weight").t());
  std::vector<at::Tensor> scores;
  for (int64_t s = 0; s < batch.num_sequences; ++s)
    scores.push_back(scores_T1[batch.documents.cu_seqlens[s + 1] - 1]);
  return at::cat(scores).to(at::kDouble).view({-1, 2});
}

TEST(Reward, IsThePlainFormulaOfTheScores) {
  for (const double center : {0.0, 0.3}) {
    const ObjectiveJob job = reward_job(center);
    const ObjectiveResult result = run_objective(job);
    double mean_loss = 0;
    for (size_t i = 0; i < job.microbatches.size(); ++i) {
      const at::Tensor scores = plain_scores(job, job.microbatches[i]);
      const auto rows = static_cast<double>(job.microbatches[i].size());
      double loss = 0, correct = 0;
      for (int64_t row = 0; row < scores.size(0); ++row) {
        const auto chosen = scores[row][0].item<double>(), rejected = scores[row][1].item<double>();
        const auto margin = job.microbatches[i][row].values_S[0].item<double>();
        loss += std::log1p(std::exp(-(chosen - rejected - margin))) +
                center * (chosen + rejected) * (chosen + rejected);
        correct += chosen > rejected ? 1 : 0;
      }
      const auto& means = result.means[i];
      EXPECT_NEAR(means.at("loss"), loss / rows, 1e-6);
      EXPECT_NEAR(means.at("min_reward"), scores.min().item<double>(), 1e-6);
      EXPECT_NEAR(means.at("max_reward"), scores.max().item<double>(), 1e-6);
      EXPECT_NEAR(means.at("mean_reward"), scores.mean().item<double>(), 1e-6);
      EXPECT_NEAR(means.at("margin"),
                  (scores.select(1, 0) - scores.select(1, 1)).mean().item<double>(), 1e-6);
      EXPECT_EQ(means.at("accuracy"), correct / rows);
      mean_loss += loss / rows / static_cast<double>(job.microbatches.size());
    }
    EXPECT_NEAR(result.loss, mean_loss, 1e-6);
  }
}

TEST(Reward, GradientIsThatOfFiniteDifferences) {
  ObjectiveJob job = reward_job(0.2);
  const ObjectiveResult result = run_objective(job);
  job.trains = false;
  const auto loss_with = [&](const std::string& name, int64_t element, double step) {
    job.adjust = [&](TrainableModel& trainable, int) {
      for (const auto& unit : trainable.units) {
        for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(0)) {
          if (slice.entry->name == name) unit->shard()[slice.shard_begin + element] += step;
        }
      }
    };
    return run_objective(job).loss;
  };
  constexpr double kStep = 4e-3;
  for (const auto& [name, element] : {std::pair<std::string, int64_t>{"score.weight", 3},
                                      {"model.norm.weight", 5},
                                      {"model.layers.1.self_attn.v_proj.weight", 17}}) {
    const double slope =
        (loss_with(name, element, kStep) - loss_with(name, element, -kStep)) / (2 * kStep);
    EXPECT_NEAR(result.gradients.at(name)[element].item<double>(), slope,
                1e-3 * (0.02 + std::abs(slope)))
        << name;
  }
}

TEST(Reward, DoesNotDependOnTheNumberOfRanks) {
  ObjectiveJob job = reward_job(0.1);
  const ObjectiveResult alone = run_objective(job);
  for (const int world_size : {2, 3, 5}) {
    job.world_size = world_size;
    expect_same_step(run_objective(job), alone, 2e-6);
  }
}

// Of the tokens that are said, not of the last ones.
TEST(Reward, ScoresWhereTheBatchSays) {
  ObjectiveJob job = reward_job();
  job.microbatches = {{pair(0, 5, 3, 0)}};
  const ObjectiveResult last = run_objective(job);
  job.microbatches[0][0].scored_tokens = {4, 7};
  expect_same_step(run_objective(job), last, 0);
  job.microbatches[0][0].scored_tokens = {2, 7};
  const double earlier = run_objective(job).means[0].at("mean_reward");
  EXPECT_GT(std::abs(earlier - last.means[0].at("mean_reward")), 1e-3);
}

// A model whose embedding was tied to its output has no use for that.
TEST(Reward, TiedEmbeddingsAreNoMatrixOfScores) {
  ObjectiveJob job = reward_job();
  const ObjectiveResult untied = run_objective(job);
  job.config = tiny_config(/*tied=*/true);
  expect_same_step(run_objective(job), untied, 0);
}

}  // namespace
}  // namespace tessera
