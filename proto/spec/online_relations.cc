#include "proto/spec/online_relations.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/spec/generation_relations.h"
#include "proto/spec/method_fields.h"

namespace tessera::spec {
namespace {

using Violations = std::vector<Violation>;

int64_t num_data_ranks(const v1::Parallelism& mesh) {
  return int64_t{mesh.dp_replicate_size()} * std::max(1, mesh.dp_shard_size());
}

// Of rows as a loader takes them, those of all ranks.
int64_t rows_of_all(const v1::JobSpec& spec, int64_t batch_rows, bool split) {
  return std::max<int64_t>(1, batch_rows * (split ? 1 : num_data_ranks(spec.parallelism())));
}

bool splits(const v1::JobSpec& spec) {
  return spec.training().accelerator_config().split_batches();
}

int64_t microbatch_rows(const v1::JobSpec& spec) {
  return rows_of_all(spec, spec.training().per_device_train_batch_size(), splits(spec));
}

template <typename Options>
GenerationPlan grouped_plan(const v1::JobSpec& spec, const Options& options) {
  GenerationPlan plan{.num_generations = options.num_generations(),
                      .num_passes = options.num_iterations(),
                      .is_whole = true};
  plan.steps_per_generation = spec.training().gradient_accumulation_steps();
  if (options.has_steps_per_generation())
    plan.steps_per_generation = options.steps_per_generation();
  if (options.has_generation_batch_size())
    plan.steps_per_generation = options.generation_batch_size() / microbatch_rows(spec);
  plan.rows = plan.steps_per_generation * microbatch_rows(spec);
  return plan;
}

template <typename Options>
void check_groups(const v1::JobSpec& spec, const Options& options, Violations& out) {
  const std::string method = method_fields(spec.method()).method;
  const int64_t rows = microbatch_rows(spec);
  if (options.has_generation_batch_size()) {
    const std::string field = method + ".generation_batch_size";
    if (options.has_steps_per_generation()) {
      out.push_back(
          {field, absl::StrCat(field, " is given beside ", method,
                               ".steps_per_generation, must be the only one of the two")});
      return;
    }
    if (options.generation_batch_size() % rows != 0) {
      out.push_back(
          {field, absl::StrCat(field, " is ", options.generation_batch_size(),
                               ", must be a multiple of the rows of a microbatch over all "
                               "ranks, ",
                               rows)});
      return;
    }
  }
  const int64_t at_once = grouped_plan(spec, options).rows;
  if (at_once % std::max(1, options.num_generations()) != 0) {
    const std::string field = method + ".num_generations";
    out.push_back(
        {field, absl::StrCat(field, " is ", options.num_generations(),
                             ", must divide the completions that are made at once, ", at_once)});
  }
}

template <typename Options>
void check_reference_of(const v1::JobSpec& spec, const Options& options, Violations& out) {
  if (!options.sync_ref_model()) return;
  const std::string field = method_fields(spec.method()).field("sync_ref_model");
  const auto refuse = [&](const char* rule) {
    out.push_back({field, absl::StrCat(field, " is true, must be false with ", rule)});
  };
  if (spec.has_peft()) refuse("peft: the reference is of whole weights");
  if (options.beta() == 0) refuse("beta 0: there is no reference");
}

void check_grpo(const v1::Grpo& grpo, Violations& out) {
  if (grpo.has_delta() && grpo.delta() <= 1 + grpo.epsilon()) {
    out.push_back({"method.grpo.delta",
                   absl::StrCat("method.grpo.delta is ", grpo.delta(),
                                ", must be above 1 + method.grpo.epsilon = ", 1 + grpo.epsilon())});
  }
  if (grpo.has_vllm_importance_sampling_clip_min() &&
      grpo.vllm_importance_sampling_clip_min() >= grpo.vllm_importance_sampling_clip_max()) {
    const char* field = "method.grpo.vllm_importance_sampling_clip_min";
    out.push_back({field, absl::StrCat(field, " is ", grpo.vllm_importance_sampling_clip_min(),
                                       ", must be below vllm_importance_sampling_clip_max, ",
                                       grpo.vllm_importance_sampling_clip_max())});
  }
  if (grpo.loss_type() == "vespo" && grpo.vllm_importance_sampling_correction() &&
      grpo.vllm_importance_sampling_mode().starts_with("sequence")) {
    const char* field = "method.grpo.vllm_importance_sampling_mode";
    out.push_back({field, absl::StrCat(field, " is \"", grpo.vllm_importance_sampling_mode(),
                                       "\", must be token_truncate or token_mask with loss_type "
                                       "vespo")});
  }
}

void check_rloo(const v1::Rloo& rloo, Violations& out) {
  const auto& range = rloo.reward_clip_range();
  if (range.empty() || (range.size() == 2 && range.Get(0) < range.Get(1))) return;
  out.push_back({"method.rloo.reward_clip_range",
                 absl::StrCat("method.rloo.reward_clip_range is a list of ", range.size(),
                              ", must hold a lower and a higher bound")});
}

// Of a rank, that are made at once.
int64_t completions_of_rank(const v1::Training& training) {
  return int64_t{training.per_device_train_batch_size()} * training.gradient_accumulation_steps();
}

void check_ppo(const v1::JobSpec& spec, Violations& out) {
  const int64_t rows = completions_of_rank(spec.training());
  const int64_t parts = std::max(1, spec.method().ppo().num_mini_batches());
  const int64_t batch_rows = spec.training().per_device_train_batch_size();
  const int64_t part_rows = rows / parts;
  if (rows % parts == 0 && (part_rows <= batch_rows || part_rows % batch_rows == 0)) return;
  const char* field = "method.ppo.num_mini_batches";
  out.push_back(
      {field, absl::StrCat(field, " is ", parts, ", must deal the ", rows,
                           " completions of training.per_device_train_batch_size and "
                           "gradient_accumulation_steps to parts of the same size, and of whole "
                           "microbatches where they have more than one")});
}

void check_rollouts(const v1::JobSpec& spec, Violations& out) {
  const v1::Data& data = spec.data();
  if (data.rollouts().empty()) return;
  const auto refuse = [&](const char* field, const std::string& rest) {
    out.push_back({field, absl::StrCat(field, rest)});
  };
  if (!takes_completions(spec.method()) && !spec.method().has_gkd()) {
    refuse("data.rollouts",
           absl::StrCat(" is given, must be absent with ", method_fields(spec.method()).method,
                        ", which makes no completions"));
  }
  if (!data.train().empty()) refuse("data.train", " is given beside data.rollouts, must be absent");
  if (!data.mixture().empty())
    refuse("data.mixture", " is given beside data.rollouts, must be absent");
  if (!spec.reward_funcs().empty())
    refuse("reward_funcs", " are given beside data.rollouts, which hold rewards: must be absent");
  if (spec.training().train_sampling_strategy() == "random") {
    refuse("training.train_sampling_strategy",
           " is \"random\", must be sequential with data.rollouts, which are gone through in their "
           "order");
  }
}

// Of completions that are compared.
int64_t num_generations_eval(const v1::Method& method) {
  if (method.has_grpo()) {
    const v1::Grpo& grpo = method.grpo();
    return grpo.has_num_generations_eval() ? grpo.num_generations_eval() : grpo.num_generations();
  }
  if (!method.has_rloo()) return 1;
  const v1::Rloo& rloo = method.rloo();
  return rloo.has_num_generations_eval() ? rloo.num_generations_eval() : rloo.num_generations();
}

template <typename Options>
void set_evaluation(int64_t num_generations, Options& options) {
  options.set_num_generations(static_cast<int32_t>(num_generations));
  options.clear_generation_batch_size();
  options.set_steps_per_generation(1);
  options.set_num_iterations(1);
}

void check_evaluation(const v1::JobSpec& spec, Violations& out) {
  const v1::Method& method = spec.method();
  if (!takes_completions(method) || spec.data().eval().empty()) return;
  if (!spec.data().rollouts().empty()) {
    out.push_back({"data.eval",
                   "data.eval is given, must be absent with data.rollouts: completions to evaluate "
                   "are made, and judged by reward_funcs"});
    return;
  }
  const int64_t rows = rows_of_all(spec, spec.training().per_device_eval_batch_size(), false);
  const int64_t each = std::max<int64_t>(1, num_generations_eval(method));
  if (rows % each == 0) return;
  const std::string field = method_fields(method).field("num_generations_eval");
  out.push_back({field, absl::StrCat(field, " is ", each,
                                     ", must divide the completions that are evaluated at once, ",
                                     rows, " by training.per_device_eval_batch_size")});
}

}  // namespace

bool takes_completions(const v1::Method& method) {
  return method.has_grpo() || method.has_rloo() || method.has_online_dpo() || method.has_ppo();
}

bool student_writes(const v1::JobSpec& spec) {
  return spec.data().rollouts().empty() && spec.method().gkd().lmbda() > 0;
}

bool teacher_writes(const v1::JobSpec& spec) {
  const v1::Gkd& gkd = spec.method().gkd();
  return spec.data().rollouts().empty() && gkd.seq_kd() && gkd.lmbda() < 1;
}

bool makes_completions(const v1::JobSpec& spec) {
  if (student_writes(spec) || teacher_writes(spec)) return true;
  return takes_completions(spec.method()) && spec.data().rollouts().empty();
}

bool makes_completions(const v1::JobSpec& spec, bool held_out) {
  return held_out ? evaluates_completions(spec) : makes_completions(spec);
}

bool evaluates_completions(const v1::JobSpec& spec) {
  return takes_completions(spec.method()) && makes_completions(spec) && !spec.data().eval().empty();
}

v1::JobSpec evaluation_job(v1::JobSpec spec) {
  v1::Training& training = *spec.mutable_training();
  training.set_per_device_train_batch_size(training.per_device_eval_batch_size());
  training.set_gradient_accumulation_steps(1);
  training.mutable_accelerator_config()->set_split_batches(false);
  v1::Method& method = *spec.mutable_method();
  const int64_t each = num_generations_eval(method);
  if (method.has_grpo()) set_evaluation(each, *method.mutable_grpo());
  if (method.has_rloo()) set_evaluation(each, *method.mutable_rloo());
  if (method.has_ppo()) {
    method.mutable_ppo()->set_num_ppo_epochs(1);
    method.mutable_ppo()->set_num_mini_batches(1);
  }
  return spec;
}

GenerationPlan generation_plan(const v1::JobSpec& spec) {
  const v1::Method& method = spec.method();
  if (method.has_grpo()) return grouped_plan(spec, method.grpo());
  if (method.has_rloo()) return grouped_plan(spec, method.rloo());
  if (method.has_ppo()) {
    const StepPlan step = step_plan(spec);
    return {.rows = rows_of_all(spec, completions_of_rank(spec.training()), splits(spec)),
            .num_passes = method.ppo().num_ppo_epochs(),
            .steps_per_generation = step.num_microbatches * method.ppo().num_mini_batches(),
            .is_whole = true};
  }
  // What is measured of pairs is of those of a microbatch; GKD draws for each who writes it.
  const bool by_microbatch = method.has_online_dpo() || makes_completions(spec);
  return {.rows = by_microbatch ? microbatch_rows(spec) : 1};
}

StepPlan step_plan(const v1::JobSpec& spec) {
  const v1::Training& training = spec.training();
  StepPlan plan{.batch_rows = training.per_device_train_batch_size(),
                .num_microbatches = training.gradient_accumulation_steps()};
  if (!spec.method().has_ppo()) return plan;
  const int64_t rows =
      completions_of_rank(training) / std::max(1, spec.method().ppo().num_mini_batches());
  plan.batch_rows = std::clamp<int64_t>(rows, 1, plan.batch_rows);
  plan.num_microbatches = std::max<int64_t>(1, rows / plan.batch_rows);
  return plan;
}

int64_t steps_of_rate(const v1::JobSpec& spec) {
  if (!spec.method().has_ppo()) return 1;
  const v1::Ppo& ppo = spec.method().ppo();
  return std::max<int64_t>(1, int64_t{ppo.num_ppo_epochs()} * ppo.num_mini_batches());
}

void check_online_relations(const v1::JobSpec& spec, Violations& out) {
  const v1::Method& method = spec.method();
  check_evaluation(spec, out);
  check_rollouts(spec, out);
  check_generation_relations(spec, out);
  if (method.has_grpo()) {
    check_groups(spec, method.grpo(), out);
    check_reference_of(spec, method.grpo(), out);
    check_grpo(method.grpo(), out);
  }
  if (method.has_rloo()) {
    check_groups(spec, method.rloo(), out);
    check_reference_of(spec, method.rloo(), out);
    check_rloo(method.rloo(), out);
  }
  if (method.has_ppo()) check_ppo(spec, out);
}

}  // namespace tessera::spec
