// Direct preference optimisation on tiny models: by scores of single documents, and over ranks.
#include <ATen/ops/full.h>
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

// A prompt of `prompt` tokens with two completions.
Batch pair(int seed, int64_t prompt, int64_t chosen, int64_t rejected) {
  Batch batch = make_batch(seed, {prompt + chosen, prompt + rejected});
  const at::Tensor labels = batch.labels_T.clone();
  batch.labels_T.fill_(kIgnoredLabel);
  std::vector<int64_t> rows, documents;
  for (int64_t document = 0; document < 2; ++document) {
    const int64_t end = batch.documents.cu_seqlens[document + 1];
    const int64_t begin = batch.documents.cu_seqlens[document] + std::max<int64_t>(prompt, 1);
    for (int64_t token = begin; token < end; ++token) {
      rows.push_back(token - 1);
      documents.push_back(document);
      batch.labels_T[token - 1] = labels[token - 1];
    }
  }
  const auto options = at::TensorOptions().dtype(at::kLong);
  batch.label_rows_L = at::tensor(rows, options);
  batch.label_documents_L = at::tensor(documents, options);
  batch.completion_tokens_S = at::tensor({chosen, rejected}, options);
  batch.num_labels = std::ssize(rows);
  batch.num_sequences = 2;
  return batch;
}

ObjectiveJob dpo_job(const std::vector<std::string>& types = {"sigmoid"}) {
  ObjectiveJob job;
  job.reference = tiny_config(/*tied=*/false);
  v1::Dpo& dpo = *job.spec.mutable_method()->mutable_dpo();
  for (const std::string& type : types) dpo.add_loss_type(type);
  dpo.set_beta(0.7);
  dpo.set_label_smoothing(0.1);
  job.spec.mutable_memory()->set_gradient_checkpointing(false);
  job.spec.mutable_memory()->set_head_chunk_tokens(3);
  job.spec.mutable_training()->set_output_dir(::testing::TempDir());
  spec::fill_defaults(job.spec);
  job.microbatches = {{pair(0, 3, 4, 2), pair(1, 1, 2, 7), pair(2, 0, 3, 5), pair(3, 4, 1, 1)},
                      {pair(4, 2, 6, 3), pair(5, 5, 2, 2)}};
  return job;
}

struct Named {
  std::string name;
  std::vector<std::string> types;
  void (*set)(v1::Dpo& dpo) = [](v1::Dpo&) {};
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

class DpoTest : public ::testing::TestWithParam<Named> {};

// Ranks may have no row at all.
TEST_P(DpoTest, DoesNotDependOnTheNumberOfRanks) {
  ObjectiveJob job = dpo_job(GetParam().types);
  GetParam().set(*job.spec.mutable_method()->mutable_dpo());
  const ObjectiveResult alone = run_objective(job);
  for (const int world_size : {2, 3, 5}) {
    job.world_size = world_size;
    expect_same_step(run_objective(job), alone, 3e-6);
  }
}

TEST_P(DpoTest, EvaluatesToTheLossThatItTrainsOn) {
  ObjectiveJob job = dpo_job(GetParam().types);
  GetParam().set(*job.spec.mutable_method()->mutable_dpo());
  const ObjectiveResult trained = run_objective(job);
  job.trains = false;
  const ObjectiveResult evaluated = run_objective(job);
  for (size_t i = 0; i < job.microbatches.size(); ++i)
    EXPECT_NEAR(evaluated.means[i].at("loss"), trained.means[i].at("loss"), 1e-5);
}

const Named kJobs[] = {
    {"pairs", {"sigmoid", "ipo", "exo_pair", "nca_pair"}},
    {"transport", {"aot"}},
    {"unpaired_transport", {"aot_unpaired"}},
    {"likelihood", {"sft"}},
    {"mixed",
     {"aot", "hinge", "sft"},
     [](v1::Dpo& dpo) {
       for (const double weight : {0.3, 2.0, 0.5}) dpo.add_loss_weights(weight);
     }},
    {"weighted", {"sigmoid", "sft"}, [](v1::Dpo& dpo) { dpo.set_use_weighting(true); }},
    {"tails", {"sigmoid", "aot"}, [](v1::Dpo& dpo) { dpo.set_ld_alpha(0.3); }},
};
INSTANTIATE_TEST_SUITE_P(All, DpoTest, ::testing::ValuesIn(kJobs),
                         [](const auto& named) { return named.param.name; });

// Scores of each document of a microbatch, by a model alone.
std::vector<double> scores(const ObjectiveJob& job, const std::vector<Batch>& rows,
                           bool of_reference) {
  const auto group = make_single_collectives();
  TrainableModel model = build_model(job.spec, job.config, *group, at::kCPU);
  fill_weights(model, /*rank=*/0);
  if (of_reference) {
    for (const auto& unit : model.units) unit->shard().mul_(1.1);
  }
  std::vector<double> all;
  for (const Batch& row : rows) {
    const at::Tensor scores_S = score_completions(*model.model, deal({row}, 0, 1), {});
    for (int i = 0; i < 2; ++i) all.push_back(scores_S[i].item<double>());
  }
  return all;
}

TEST(Dpo, MeasuresWhatDocumentsSayOneByOne) {
  const ObjectiveJob job = dpo_job();
  const ObjectiveResult result = run_objective(job);
  double loss = 0;
  for (size_t i = 0; i < job.microbatches.size(); ++i) {
    const std::vector<double> policy = scores(job, job.microbatches[i], false);
    const std::vector<double> reference = scores(job, job.microbatches[i], true);
    const auto pairs = static_cast<double>(job.microbatches[i].size());
    double of_microbatch = 0, chosen = 0, rejected = 0, right = 0, logps = 0;
    for (size_t p = 0; p < policy.size(); p += 2) {
      const double c = policy[p] - reference[p], r = policy[p + 1] - reference[p + 1];
      of_microbatch += std::log1p(std::exp(-0.7 * (c - r))) / pairs;
      chosen += 0.7 * c / pairs;
      rejected += 0.7 * r / pairs;
      right += (c > r) / pairs;
      logps += policy[p + 1] / pairs;
    }
    const auto& means = result.means[i];
    EXPECT_NEAR(means.at("loss"), of_microbatch, 1e-5);
    EXPECT_NEAR(means.at("rewards/chosen"), chosen, 1e-5);
    EXPECT_NEAR(means.at("rewards/rejected"), rejected, 1e-5);
    EXPECT_NEAR(means.at("rewards/margins"), chosen - rejected, 1e-5);
    EXPECT_NEAR(means.at("rewards/accuracies"), right, 1e-9);
    EXPECT_NEAR(means.at("logps/rejected"), logps, 1e-5);
    loss += of_microbatch / static_cast<double>(job.microbatches.size());
  }
  EXPECT_NEAR(result.loss, loss, 1e-5);
}

TEST(Dpo, TakesScoresThatWereMadeBefore) {
  ObjectiveJob job = dpo_job({"sigmoid", "aot"});
  const ObjectiveResult with_model = run_objective(job);
  for (std::vector<Batch>& rows : job.microbatches) {
    const std::vector<double> of_reference = scores(job, rows, true);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].reference_logps_S = at::tensor({of_reference[2 * i], of_reference[2 * i + 1]},
                                             at::TensorOptions().dtype(at::kFloat));
    }
  }
  job.reference.reset();
  expect_same_step(run_objective(job), with_model, 1e-5);
}

// Without a model of its own, the reference is the policy as it is without adapters.
TEST(Dpo, SwitchesAdaptersOffForTheReference) {
  ObjectiveJob job = dpo_job();
  job.reference.reset();
  job.spec.mutable_peft()->set_lora_r(2);
  job.spec.mutable_peft()->add_lora_target_modules("all-linear");
  spec::fill_defaults(job.spec);
  const auto fill = [](TrainableModel& model, int, double size) {
    for (const auto& unit : model.units) {
      for (const FlatEntry& entry : unit->layout().entries) {
        if (entry.name.find("lora_B") == std::string::npos) continue;
        unit->shard().narrow(0, entry.offset, entry.numel).mul_(size);
      }
    }
  };
  job.adjust = [&](TrainableModel& model, int rank) { fill(model, rank, 0); };
  EXPECT_NEAR(run_objective(job).means[0].at("rewards/margins"), 0, 1e-6);
  job.adjust = [&](TrainableModel& model, int rank) { fill(model, rank, 1); };
  const ObjectiveResult adapted = run_objective(job);
  EXPECT_GT(std::abs(adapted.means[0].at("rewards/margins")), 1e-3);
  // The same base, given as scores.
  for (std::vector<Batch>& rows : job.microbatches) {
    ObjectiveJob base = job;
    base.spec.clear_peft();
    const std::vector<double> of_base = scores(base, rows, false);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].reference_logps_S =
          at::tensor({of_base[2 * i], of_base[2 * i + 1]}, at::TensorOptions().dtype(at::kFloat));
    }
  }
  expect_same_step(run_objective(job), adapted, 1e-5);
}

TEST(Dpo, WeighsTokensBeyondTheShorterCompletion) {
  const std::vector<Batch> rows{pair(0, 3, 4, 2), pair(1, 1, 2, 7), pair(2, 0, 3, 5)};
  const Batch batch = deal(rows, 0, 1);
  const at::Tensor weights_L = tail_weights(batch, 0.25).index_select(0, batch.label_rows_L);
  // The first token of the third pair's documents has no label.
  const std::vector<double> expected{1, 1, 0.25, 0.25, 1,    1,                       // 4 and 2
                                     1, 1, 1,    1,    0.25, 0.25, 0.25, 0.25, 0.25,  // 2 and 7
                                     1, 1, 1,    1,    0.25, 0.25};                   // 2 and 4
  ASSERT_EQ(weights_L.size(0), std::ssize(expected));
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(weights_L[static_cast<int64_t>(i)].item<double>(), expected[i]) << i;
  EXPECT_EQ(tail_weights(batch, 0.25).sum().item<double>(), weights_L.sum().item<double>());
}

}  // namespace
}  // namespace tessera
