// Rules of methods that train on completions made for them.
#include "proto/spec/online_relations.h"

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

v1::JobSpec filled(const std::function<void(v1::JobSpec&)>& change) {
  v1::JobSpec spec;
  spec.set_name("demo");
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_data()->add_rollouts("/data/r.jsonl");
  spec.mutable_training()->set_output_dir("/out");
  change(spec);
  fill_defaults(spec);
  return spec;
}

std::vector<std::string> messages_after(const std::function<void(v1::JobSpec&)>& change) {
  std::vector<std::string> out;
  for (const Violation& violation : validate(filled(change))) out.push_back(violation.message);
  return out;
}

v1::Grpo& grpo(v1::JobSpec& spec) { return *spec.mutable_method()->mutable_grpo(); }
v1::Rloo& rloo(v1::JobSpec& spec) { return *spec.mutable_method()->mutable_rloo(); }

// The job makes completions itself.
v1::JobSpec& live(v1::JobSpec& spec) {
  spec.mutable_data()->clear_rollouts();
  spec.mutable_data()->add_train("/data/t.jsonl");
  v1::RewardFunc& reward = *spec.add_reward_funcs();
  reward.set_name("digit");
  reward.mutable_regex()->set_pattern("[0-9]");
  return spec;
}

v1::Ppo& ppo(v1::JobSpec& spec) {
  v1::Ppo& ppo = *spec.mutable_method()->mutable_ppo();
  ppo.set_value_model_path("/models/v");
  return ppo;
}

struct Rule {
  const char* name;
  void (*change)(v1::JobSpec& spec);
  std::string message;
};
void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

class OnlineRelations : public ::testing::TestWithParam<Rule> {};

TEST_P(OnlineRelations, IsKept) {
  EXPECT_THAT(messages_after(GetParam().change), Contains(GetParam().message));
}

const Rule kRules[] = {
    {"UnevenMiniBatches", [](auto& s) { ppo(s).set_num_mini_batches(3); },
     "method.ppo.num_mini_batches is 3, must deal the 8 completions of "
     "training.per_device_train_batch_size and gradient_accumulation_steps to parts of the same "
     "size, and of whole microbatches where they have more than one"},
    {"PartOfAMicrobatchLeft",
     [](auto& s) {
       ppo(s).set_num_mini_batches(2);
       s.mutable_training()->set_gradient_accumulation_steps(3);
     },
     "method.ppo.num_mini_batches is 2, must deal the 24 completions of "
     "training.per_device_train_batch_size and gradient_accumulation_steps to parts of the same "
     "size, and of whole microbatches where they have more than one"},
    {"AheadOfNothing",
     [](auto& s) {
       grpo(s);
       s.mutable_generation()->set_async(true);
     },
     "generation.async is true, must be absent with data.rollouts, which hold completions"},
    {"StopsNothing",
     [](auto& s) {
       ppo(s);
       s.mutable_generation()->add_stop_strings("end");
     },
     "generation.stop_strings is given, must be absent with data.rollouts, which hold completions"},
    {"RecordsNothing",
     [](auto& s) {
       live(s).mutable_method()->mutable_sft();
       s.mutable_generation()->set_record_to("/out/record");
     },
     "generation.record_to is /out/record, must be absent with method.sft, which makes no "
     "completions"},
    {"MergesNothing",
     [](auto& s) {
       live(s).mutable_method()->mutable_dpo();
       s.mutable_peft();
       s.mutable_generation()->set_merge_adapter(true);
     },
     "generation.merge_adapter is true, must be absent with method.dpo, which makes no "
     "completions"},
    {"NobodyWrites",
     [](auto& s) {
       v1::Gkd& gkd = *live(s).mutable_method()->mutable_gkd();
       gkd.set_lmbda(0);
       s.mutable_generation()->set_weights("gather");
     },
     "generation.weights is gather, must be absent with method.gkd, which makes no completions "
     "with lmbda 0 and without seq_kd"},
    {"NobodyJudges",
     [](auto& s) {
       grpo(live(s));
       s.clear_reward_funcs();
     },
     "reward_funcs is missing, must hold what judges the completions that method.grpo makes"},
    {"NothingToJudge", [](auto& s) { live(s).mutable_method()->mutable_sft(); },
     "reward_funcs are given, must be absent with method.sft, which has no use for rewards"},
    {"MoreSequencesThanTokens",
     [](auto& s) {
       grpo(live(s));
       s.mutable_generation()->set_max_num_batched_tokens(9);
     },
     "generation.max_num_seqs is 256, must be at most max_num_batched_tokens, 9: a pass has a "
     "token "
     "of each"},
    {"CacheOfNoSize",
     [](auto& s) {
       grpo(live(s));
       s.mutable_generation()->set_kv_cache_memory("much");
     },
     "generation.kv_cache_memory is \"much\", must be a number with its unit, such as 512MiB or "
     "80GiB (alone it counts bytes), from 1MiB to 1024TiB"},
    {"HeldOut",
     [](auto& s) {
       rloo(s);
       s.mutable_data()->add_eval("/data/e.jsonl");
     },
     "data.eval is given, must be absent with data.rollouts: completions to evaluate are made, and "
     "judged by reward_funcs"},
    {"MetricOfOtherRewards",
     [](auto& s) {
       rloo(live(s));
       s.mutable_data()->add_eval("/data/e.jsonl");
       s.mutable_training()->set_metric_for_best_model("eval_rewards/letter/mean");
     },
     "training.metric_for_best_model is \"eval_rewards/letter/mean\", must be a metric of the "
     "method: loss, entropy, clip_ratio/low_mean, clip_ratio/low_min, clip_ratio/high_mean, "
     "clip_ratio/high_max, clip_ratio/region_mean, frac_reward_zero_std, reward, reward_std, "
     "completions/mean_length, completions/min_length, completions/max_length, "
     "completions/clipped_ratio, completions/mean_terminated_length, "
     "completions/min_terminated_length, completions/max_terminated_length, rewards/digit/mean, "
     "rewards/digit/std, aux_loss"},
    {"GroupsOfAnEvaluation",
     [](auto& s) {
       grpo(live(s)).set_num_generations_eval(3);
       s.mutable_data()->add_eval("/data/e.jsonl");
     },
     "method.grpo.num_generations_eval is 3, must divide the completions that are evaluated at "
     "once, 8 by training.per_device_eval_batch_size"},
    {"RolloutsOfSft", [](auto& s) { s.mutable_method()->mutable_sft(); },
     "data.rollouts is given, must be absent with method.sft, which makes no completions"},
    {"PromptsToo",
     [](auto& s) {
       grpo(s);
       s.mutable_data()->add_train("/data/t.jsonl");
     },
     "data.train is given beside data.rollouts, must be absent"},
    {"Shuffled",
     [](auto& s) {
       grpo(s);
       s.mutable_training()->set_train_sampling_strategy("random");
     },
     "training.train_sampling_strategy is \"random\", must be sequential with data.rollouts, which "
     "are gone through in their order"},
    {"PartOfAGroup", [](auto& s) { grpo(s).set_num_generations(3); },
     "method.grpo.num_generations is 3, must divide the completions that are made at once, 8"},
    {"TwoSizes",
     [](auto& s) {
       rloo(s).set_generation_batch_size(16);
       rloo(s).set_steps_per_generation(2);
     },
     "method.rloo.generation_batch_size is given beside method.rloo.steps_per_generation, must be "
     "the only one of the two"},
    {"PartOfAMicrobatch", [](auto& s) { grpo(s).set_generation_batch_size(20); },
     "method.grpo.generation_batch_size is 20, must be a multiple of the rows of a microbatch over "
     "all ranks, 8"},
    {"LowDelta", [](auto& s) { grpo(s).set_delta(1.1); },
     "method.grpo.delta is 1.1, must be above 1 + method.grpo.epsilon = 1.2"},
    {"CrossedBounds", [](auto& s) { grpo(s).set_vllm_importance_sampling_clip_min(4); },
     "method.grpo.vllm_importance_sampling_clip_min is 4, must be below "
     "vllm_importance_sampling_clip_max, 3"},
    {"VespoBySequences", [](auto& s) { grpo(s).set_loss_type("vespo"); },
     "method.grpo.vllm_importance_sampling_mode is \"sequence_mask\", must be token_truncate or "
     "token_mask with loss_type vespo"},
    {"NoReferenceToMove", [](auto& s) { grpo(s).set_sync_ref_model(true); },
     "method.grpo.sync_ref_model is true, must be false with beta 0: there is no reference"},
    {"ReferenceOfAdapters",
     [](auto& s) {
       rloo(s).set_sync_ref_model(true);
       s.mutable_peft();
     },
     "method.rloo.sync_ref_model is true, must be false with peft: the reference is of whole "
     "weights"},
    {"OneBound", [](auto& s) { rloo(s).add_reward_clip_range(1); },
     "method.rloo.reward_clip_range is a list of 1, must hold a lower and a higher bound"},
    {"PartOfTheStudents",
     [](auto& s) {
       v1::Gkd& gkd = *s.mutable_method()->mutable_gkd();
       gkd.set_teacher_model_name_or_path("/models/teacher");
       gkd.set_lmbda(0.5);
     },
     "method.gkd.lmbda is 0.5, must be 1 with data.rollouts, which are all trained on"},
    {"TeachersRollouts",
     [](auto& s) {
       v1::Gkd& gkd = *s.mutable_method()->mutable_gkd();
       gkd.set_teacher_model_name_or_path("/models/teacher");
       gkd.set_seq_kd(true);
     },
     "method.gkd.seq_kd is true, must be false with data.rollouts: nothing is generated"},
};
INSTANTIATE_TEST_SUITE_P(All, OnlineRelations, ::testing::ValuesIn(kRules),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(GenerationPlan, FollowsTheBatchesOfAllRanks) {
  const v1::JobSpec spec = filled([](v1::JobSpec& s) {
    grpo(s).set_num_iterations(3);
    s.mutable_training()->set_gradient_accumulation_steps(2);
    s.mutable_parallelism()->set_num_processes(8);
    s.mutable_parallelism()->set_cp_size(2);
  });
  const GenerationPlan plan = generation_plan(spec);
  EXPECT_EQ(plan.rows, 8 * 4 * 2);  // ranks of a cp axis share their rows
  EXPECT_EQ(plan.steps_per_generation, 2);
  EXPECT_EQ(plan.num_passes, 3);
}

// Of a rank's batch and accumulation, what a step of PPO has and how many make a generation.
struct Parts {
  int batch, accumulation, mini_batches;
  int64_t batch_rows, num_microbatches, steps_per_generation;
};

TEST(StepPlan, OfPpoIsAMiniBatch) {
  for (const Parts& parts :
       {Parts{8, 1, 1, 8, 1, 1}, Parts{8, 1, 2, 4, 1, 2}, Parts{8, 4, 1, 8, 4, 4},
        Parts{2, 8, 4, 2, 2, 8}, Parts{4, 2, 8, 1, 1, 8}}) {
    const v1::JobSpec spec = filled([&](v1::JobSpec& s) {
      ppo(s).set_num_mini_batches(parts.mini_batches);
      s.mutable_training()->set_per_device_train_batch_size(parts.batch);
      s.mutable_training()->set_gradient_accumulation_steps(parts.accumulation);
      s.mutable_parallelism()->set_num_processes(2);
    });
    EXPECT_THAT(validate(spec), IsEmpty());
    EXPECT_EQ(step_plan(spec).batch_rows, parts.batch_rows);
    EXPECT_EQ(step_plan(spec).num_microbatches, parts.num_microbatches);
    const GenerationPlan plan = generation_plan(spec);
    EXPECT_EQ(plan.rows, 2 * parts.batch * parts.accumulation);
    EXPECT_EQ(plan.steps_per_generation, parts.steps_per_generation);
    EXPECT_EQ(plan.num_passes, 4);
    EXPECT_EQ(steps_of_rate(spec), 4 * parts.mini_batches);
  }
}

TEST(GenerationPlan, OfAnEvaluationIsItsMicrobatch) {
  const v1::JobSpec spec = filled([](v1::JobSpec& s) {
    grpo(live(s)).set_num_iterations(3);
    grpo(s).set_num_generations_eval(2);
    grpo(s).set_generation_batch_size(64);
    s.mutable_data()->add_eval("/data/e.jsonl");
    s.mutable_training()->set_per_device_eval_batch_size(4);
    s.mutable_parallelism()->set_num_processes(2);
  });
  EXPECT_THAT(validate(spec), IsEmpty());
  ASSERT_TRUE(makes_completions(spec, /*held_out=*/true));
  const GenerationPlan plan = generation_plan(evaluation_job(spec));
  EXPECT_EQ(plan.rows, 8);
  EXPECT_EQ(plan.num_generations, 2);
  EXPECT_EQ(plan.num_passes, 1);
  EXPECT_EQ(plan.steps_per_generation, 1);
}

TEST(GenerationPlan, OfAnEvaluationOfPpoIsGoneThroughOnce) {
  const v1::JobSpec spec = filled([](v1::JobSpec& s) {
    ppo(live(s)).set_num_mini_batches(2);
    s.mutable_data()->add_eval("/data/e.jsonl");
    s.mutable_training()->set_gradient_accumulation_steps(4);
    s.mutable_training()->set_per_device_eval_batch_size(4);
    s.mutable_training()->set_metric_for_best_model("eval_objective/scores");
  });
  EXPECT_THAT(validate(spec), IsEmpty());
  const GenerationPlan plan = generation_plan(evaluation_job(spec));
  EXPECT_EQ(plan.rows, 4);
  EXPECT_EQ(plan.num_generations, 1);
  EXPECT_EQ(plan.num_passes, 1);
  EXPECT_EQ(plan.steps_per_generation, 1);
}

v1::JobSpec gkd_job(double lmbda, bool seq_kd) {
  return filled([&](v1::JobSpec& s) {
    s.mutable_data()->clear_rollouts();
    s.mutable_data()->add_train("/data/t.jsonl");
    s.mutable_data()->add_eval("/data/e.jsonl");
    v1::Gkd& gkd = *s.mutable_method()->mutable_gkd();
    gkd.set_teacher_model_name_or_path("/models/teacher");
    if (lmbda >= 0) gkd.set_lmbda(lmbda);
    gkd.set_seq_kd(seq_kd);
  });
}

// What a file writes out of the defaults says nothing else.
TEST(OnlineRelations, LetDefaultsOfGenerationBeWrittenOut) {
  const v1::JobSpec spec = filled([](v1::JobSpec& s) {
    grpo(s);
    s.mutable_generation()->set_weights("auto");
    s.mutable_generation()->set_async(false);
    s.mutable_generation()->set_max_num_seqs(256);
  });
  EXPECT_THAT(validate(spec), IsEmpty());
}

TEST(MakesCompletions, IsOfGkdWhereAModelWritesDocuments) {
  for (const auto& [lmbda, seq_kd, student, teacher] :
       {std::tuple(-1., false, false, false), std::tuple(0.5, false, true, false),
        std::tuple(-1., true, false, true), std::tuple(0.5, true, true, true),
        std::tuple(1., true, true, false)}) {
    const v1::JobSpec spec = gkd_job(lmbda, seq_kd);
    EXPECT_THAT(validate(spec), IsEmpty());
    EXPECT_EQ(student_writes(spec), student);
    EXPECT_EQ(teacher_writes(spec), teacher);
    EXPECT_EQ(makes_completions(spec, /*held_out=*/false), student || teacher);
    EXPECT_FALSE(makes_completions(spec, /*held_out=*/true));
    EXPECT_EQ(generation_plan(spec).rows, student || teacher ? 8 : 1);
  }
}

TEST(StepPlan, OfOtherMethodsIsWhatTrainingSays) {
  const v1::JobSpec spec = filled([](v1::JobSpec& s) {
    grpo(s);
    s.mutable_training()->set_per_device_train_batch_size(4);
    s.mutable_training()->set_gradient_accumulation_steps(3);
  });
  EXPECT_EQ(step_plan(spec).batch_rows, 4);
  EXPECT_EQ(step_plan(spec).num_microbatches, 3);
  EXPECT_EQ(steps_of_rate(spec), 1);
}

TEST(GenerationPlan, TakesTheSizeThatIsGiven) {
  const v1::JobSpec spec = filled([](v1::JobSpec& s) { rloo(s).set_generation_batch_size(24); });
  EXPECT_EQ(generation_plan(spec).rows, 24);
  EXPECT_EQ(generation_plan(spec).steps_per_generation, 3);
  EXPECT_THAT(validate(spec), IsEmpty());
}

}  // namespace
}  // namespace tessera::spec
