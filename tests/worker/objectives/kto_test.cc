// Kahneman-Tversky optimisation on tiny models: by scores of single documents, and over ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/worker/objectives/objective_job.h"
#include "worker/objectives/sequences.h"

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

constexpr double kBeta = 0.6, kDesirable = 1.5, kUndesirable = 0.5;

Batch document(int seed, int64_t prompt, int64_t completion) {
  Batch batch = make_batch(seed, {prompt + completion});
  batch.labels_T.narrow(0, 0, prompt - 1).fill_(kIgnoredLabel);
  batch.labels_T[prompt + completion - 1] = kIgnoredLabel;
  batch.label_rows_L = at::arange(prompt - 1, prompt + completion - 1, at::kLong);
  batch.label_documents_L = at::zeros({completion}, at::kLong);
  batch.num_labels = completion;
  batch.num_sequences = 1;
  return batch;
}

// With the completion of another row.
Batch row(int seed, bool desirable, int64_t prompt, int64_t completion) {
  Batch batch = document(seed, prompt, completion);
  batch.values_S = at::full({1}, desirable ? 1 : 0, at::kFloat);
  batch.mismatched = std::make_shared<const Batch>(document(seed + 20, prompt, completion + 1));
  return batch;
}

ObjectiveJob kto_job(const std::string& loss = "kto") {
  ObjectiveJob job;
  job.reference = tiny_config(/*tied=*/false);
  v1::Kto& kto = *job.spec.mutable_method()->mutable_kto();
  kto.set_loss_type(loss);
  kto.set_beta(kBeta);
  kto.set_desirable_weight(kDesirable);
  kto.set_undesirable_weight(kUndesirable);
  job.spec.mutable_memory()->set_gradient_checkpointing(false);
  job.spec.mutable_memory()->set_head_chunk_tokens(3);
  job.spec.mutable_training()->set_output_dir(::testing::TempDir());
  spec::fill_defaults(job.spec);
  job.microbatches = {
      {row(0, true, 3, 4), row(1, false, 1, 5), row(2, false, 2, 2), row(3, true, 4, 1)},
      {row(4, true, 2, 6), row(5, true, 5, 2)}};
  if (loss == "apo_zero_unpaired") {
    for (std::vector<Batch>& rows : job.microbatches) {
      for (Batch& each : rows) each.mismatched = nullptr;
    }
  }
  return job;
}

// Log p of the policy less that of the reference, of each document alone.
std::vector<double> logratios(const ObjectiveJob& job, const std::vector<Batch>& rows) {
  const auto group = make_single_collectives();
  std::vector<double> ratios(rows.size());
  for (const bool of_reference : {false, true}) {
    TrainableModel model = build_model(job.spec, job.config, *group, at::kCPU);
    fill_weights(model, /*rank=*/0);
    if (of_reference) {
      for (const auto& unit : model.units) unit->shard().mul_(1.1);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      const double score =
          score_completions(*model.model, deal({rows[i]}, 0, 1), {}).item<double>();
      ratios[i] += of_reference ? -score : score;
    }
  }
  return ratios;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class KtoTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KtoTest, DoesNotDependOnTheNumberOfRanks) {
  ObjectiveJob job = kto_job(GetParam());
  ObjectiveResult alone = run_objective(job);
  // Nothing is undesirable there: no number.
  for (auto& [name, mean] : alone.means[1]) {
    const bool lacks = name.ends_with("rejected") || name == "rewards/margins";
    EXPECT_EQ(std::isnan(mean), lacks) << name;
  }
  for (const int world_size : {2, 3, 5}) {
    job.world_size = world_size;
    ObjectiveResult result = run_objective(job);
    for (ObjectiveResult* each : {&result, &alone}) {
      std::erase_if(each->means[1], [](const auto& mean) { return std::isnan(mean.second); });
    }
    expect_same_step(result, alone, 3e-6);
  }
}

TEST_P(KtoTest, MeasuresWhatDocumentsSayOneByOne) {
  const ObjectiveJob job = kto_job(GetParam());
  const ObjectiveResult result = run_objective(job);
  double loss = 0;
  for (size_t i = 0; i < job.microbatches.size(); ++i) {
    const std::vector<Batch>& rows = job.microbatches[i];
    const std::vector<double> ratios = logratios(job, rows);
    double kl = 0;
    if (GetParam() == "kto") {
      std::vector<Batch> mismatched;
      for (const Batch& each : rows) mismatched.push_back(*each.mismatched);
      for (const double ratio : logratios(job, mismatched))
        kl += ratio / static_cast<double>(rows.size());
    }
    kl = std::max(0.0, kl);
    double of_microbatch = 0, chosen = 0, num_chosen = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const bool desirable = rows[r].values_S.item<float>() == 1;
      const double x = kBeta * (ratios[r] - kl);
      of_microbatch += desirable ? kDesirable * (1 - sigmoid(x)) : kUndesirable * sigmoid(x);
      chosen += desirable ? kBeta * ratios[r] : 0;
      num_chosen += desirable ? 1 : 0;
    }
    of_microbatch /= static_cast<double>(rows.size());
    EXPECT_NEAR(result.means[i].at("kl"), kl, 1e-5);
    EXPECT_NEAR(result.means[i].at("loss"), of_microbatch, 1e-5);
    EXPECT_NEAR(result.means[i].at("rewards/chosen"), chosen / num_chosen, 1e-5);
    loss += of_microbatch / static_cast<double>(job.microbatches.size());
  }
  EXPECT_NEAR(result.loss, loss, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Losses, KtoTest, ::testing::Values("kto", "apo_zero_unpaired"),
                         [](const auto& loss) { return loss.param; });

}  // namespace
}  // namespace tessera
