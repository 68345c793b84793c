// Distillation on tiny models: by whole logits, and over ranks.
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <gtest/gtest.h>

#include "tests/worker/objectives/objective_job.h"
#include "worker/model/functions.h"

namespace tessera {
namespace {

using testing::deal;
using testing::expect_same_step;
using testing::fill_weights;
using testing::make_batch;
using testing::make_frozen;
using testing::ObjectiveJob;
using testing::ObjectiveResult;
using testing::run_objective;
using testing::tiny_config;

// A document of which the labels from `prompt` on count.
Batch row(int seed, int64_t tokens, int64_t prompt) {
  Batch batch = make_batch(seed, {tokens});
  batch.labels_T.narrow(0, 0, prompt).fill_(kIgnoredLabel);
  batch.label_rows_L = at::arange(prompt, tokens, at::kLong);
  batch.num_labels = tokens - prompt;
  batch.num_sequences = 1;
  return batch;
}

ModelConfig teacher_config() {
  ModelConfig config = tiny_config(/*tied=*/true);
  config.hidden_size = 18;
  config.num_layers = 2;
  return config;
}

ObjectiveJob gkd_job(double beta, bool tied = false) {
  ObjectiveJob job;
  job.config = tiny_config(tied);
  job.teacher = teacher_config();
  v1::Gkd& gkd = *job.spec.mutable_method()->mutable_gkd();
  gkd.set_beta(beta);
  gkd.set_teacher_model_name_or_path("teacher");
  job.spec.mutable_memory()->set_gradient_checkpointing(false);
  job.spec.mutable_memory()->set_head_chunk_tokens(3);
  job.spec.mutable_training()->set_output_dir(::testing::TempDir());
  spec::fill_defaults(job.spec);
  job.microbatches = {{row(0, 7, 2), row(1, 4, 3), row(2, 9, 0)}, {row(3, 5, 5), row(4, 6, 1)}};
  return job;
}

at::Tensor log_probabilities(TrainableModel& of, const Batch& batch) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& unit : of.units) {
    for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(0)) {
      weights[slice.entry->name] =
          unit->shard().narrow(0, slice.shard_begin, slice.numel).view(slice.entry->shape);
    }
  }
  const at::Tensor& output =
      weights.at(of.model->tied() ? "model.embed_tokens.weight" : "lm_head.weight");
  const at::Tensor normed_TD =
      rms_norm(of.model->forward(batch), weights.at("model.norm.weight").to(at::kFloat),
               of.model->config().rms_norm_eps);
  return at::log_softmax(at::mm(normed_TD.to(at::kDouble), output.to(at::kDouble).t()), 1);
}

// The sum over the labels of a microbatch.
double plain_sum(const ObjectiveJob& job, const std::vector<Batch>& rows, double beta) {
  const c10::AutoGradMode no_grad(false);
  const auto group = make_single_collectives();
  TrainableModel student = build_model(job.spec, job.config, *group, at::kCPU);
  TrainableModel teacher = make_frozen(job.spec, *job.teacher, *group);
  fill_weights(student, /*rank=*/0);
  fill_weights(teacher, /*rank=*/0);
  const Batch batch = deal(rows, 0, 1);
  const at::Tensor log_p = log_probabilities(student, batch).index_select(0, batch.label_rows_L);
  const at::Tensor log_q = log_probabilities(teacher, batch).index_select(0, batch.label_rows_L);
  const auto kl = [](const at::Tensor& log_a, const at::Tensor& log_b) {
    return (log_a.exp() * (log_a - log_b)).sum().item<double>();
  };
  if (beta == 0) return kl(log_q, log_p);
  if (beta == 1) return kl(log_p, log_q);
  const at::Tensor log_m = at::logaddexp(log_p + std::log1p(-beta), log_q + std::log(beta));
  return beta * kl(log_q, log_m) + (1 - beta) * kl(log_p, log_m);
}

class GkdTest : public ::testing::TestWithParam<double> {};

TEST_P(GkdTest, IsTheDivergenceOfTheWholeLogitsByLabelsOfTheStep) {
  for (const bool tied : {false, true}) {
    const ObjectiveJob job = gkd_job(GetParam(), tied);
    const ObjectiveResult result = run_objective(job);
    double sum = 0, labels = 0;
    for (size_t i = 0; i < job.microbatches.size(); ++i) {
      const double of_microbatch = plain_sum(job, job.microbatches[i], GetParam());
      double count = 0;
      for (const Batch& row : job.microbatches[i]) count += static_cast<double>(row.num_labels);
      EXPECT_NEAR(result.means[i].at("loss"), of_microbatch / count, 2e-6);
      sum += of_microbatch;
      labels += count;
    }
    EXPECT_NEAR(result.loss, sum / labels, 2e-6);
  }
}

TEST_P(GkdTest, DoesNotDependOnTheNumberOfRanks) {
  ObjectiveJob job = gkd_job(GetParam());
  const ObjectiveResult alone = run_objective(job);
  for (const int world_size : {2, 3, 5}) {
    job.world_size = world_size;
    expect_same_step(run_objective(job), alone, 2e-6);
  }
}

TEST_P(GkdTest, EvaluatesToTheLossThatItTrainsOn) {
  ObjectiveJob job = gkd_job(GetParam());
  const ObjectiveResult trained = run_objective(job);
  job.trains = false;
  const ObjectiveResult evaluated = run_objective(job);
  EXPECT_EQ(evaluated.loss, trained.loss);
  EXPECT_TRUE(evaluated.gradients.empty());
}

INSTANTIATE_TEST_SUITE_P(Betas, GkdTest, ::testing::Values(0.0, 0.3, 1.0));

// A student that is its teacher has nothing to learn.
TEST(Gkd, OfTheTeacherItselfIsNothing) {
  ObjectiveJob job = gkd_job(0.5);
  job.teacher = job.config;
  const ObjectiveResult result = run_objective(job);
  EXPECT_NEAR(result.loss, 0, 1e-7);
  for (const auto& [name, gradient] : result.gradients)
    EXPECT_LT(gradient.abs().max().item<double>(), 1e-6) << name;
}

}  // namespace
}  // namespace tessera
