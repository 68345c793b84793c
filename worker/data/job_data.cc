#include "worker/data/job_data.h"

#include "proto/spec/method_fields.h"
#include "proto/spec/online_relations.h"
#include "proto/spec/reward_relations.h"

namespace tessera {
namespace {

std::vector<DataSource> sources_of(const v1::Data& data, bool held_out) {
  const auto paths_of = [](const auto& list) {
    return std::vector<std::filesystem::path>(list.begin(), list.end());
  };
  if (held_out) return {{.paths = paths_of(data.eval()), .field = "data.eval"}};
  if (!data.rollouts().empty())
    return {{.paths = paths_of(data.rollouts()), .field = "data.rollouts"}};
  if (data.mixture().empty()) return {{.paths = paths_of(data.train()), .field = "data.train"}};
  std::vector<DataSource> sources;
  for (const v1::DataSource& source : data.mixture()) {
    sources.push_back({.paths = paths_of(source.path()),
                       .field = "data.mixture[" + std::to_string(sources.size()) + "].path",
                       .weight = source.weight()});
  }
  return sources;
}

void set_sft(const v1::Sft& sft, bool held_out, DatasetOptions& options) {
  options.examples.kind = RecordKind::kSft;
  options.examples.text_field = sft.dataset_text_field();
  if (sft.has_completion_only_loss()) {
    options.examples.completion_only_loss = sft.completion_only_loss();
  }
  options.examples.assistant_only_loss = sft.assistant_only_loss();
  const bool packs = held_out && sft.has_eval_packing() ? sft.eval_packing() : sft.packing();
  if (packs) {
    options.packing = sft.packing_strategy() == "bfd"         ? PackingStrategy::kBfd
                      : sft.packing_strategy() == "bfd_split" ? PackingStrategy::kBfdSplit
                                                              : PackingStrategy::kWrapped;
  }
}

template <typename Options>
void set_rewards(const Options& method, const char* weights_field, RolloutOptions& options) {
  options.needs_rewards = true;
  options.reward_weights = {method.reward_weights().begin(), method.reward_weights().end()};
  options.reward_weights_field = weights_field;
}

void set_live(const v1::JobSpec& spec, RolloutOptions& options) {
  options.is_live = true;
  options.has_documents = spec.method().has_gkd();
  options.max_completion_length = spec::longest_completion(spec.method());
  for (const v1::RewardFunc& reward : spec.reward_funcs())
    options.reward_names.push_back(reward.name());
  // GRPO corrects by them.
  options.has_logprobs = spec.method().has_grpo();
}

RolloutOptions rollout_options(const v1::JobSpec& spec, bool held_out) {
  const v1::Method& method = spec.method();
  const spec::GenerationPlan plan = spec::generation_plan(spec);
  RolloutOptions options;
  options.generation_rows = plan.rows;
  options.num_generations = plan.num_generations;
  options.num_passes = plan.num_passes;
  options.whole_generations = plan.is_whole && !held_out;
  options.compares = method.has_grpo() || method.has_rloo();
  if (method.has_grpo()) {
    set_rewards(method.grpo(), "method.grpo.reward_weights", options);
    options.masks_truncated = method.grpo().mask_truncated_completions();
  } else if (method.has_rloo()) {
    set_rewards(method.rloo(), "method.rloo.reward_weights", options);
    options.masks_truncated = method.rloo().mask_truncated_completions();
  } else if (method.has_online_dpo()) {
    set_rewards(method.online_dpo(), "method.online_dpo.reward_weights", options);
    options.pairs = true;
    options.truncated_penalty = method.online_dpo().missing_eos_penalty();
  } else if (method.has_ppo()) {
    set_rewards(method.ppo(), "method.ppo.reward_weights", options);
    options.zero_if_unjudged = true;
    options.truncated_penalty = method.ppo().missing_eos_penalty();
    if (!held_out) options.order_seed = static_cast<uint32_t>(spec.training().seed());
  }
  if (spec::makes_completions(spec, held_out)) set_live(spec, options);
  return options;
}

void set_method(const v1::JobSpec& spec, bool held_out, DatasetOptions& options) {
  const v1::Method& method = spec.method();
  switch (method.kind_case()) {
    case v1::Method::kDpo:
      options.examples.kind = RecordKind::kDpo;
      options.keep_end = method.dpo().truncation_mode() == "keep_end";
      break;
    case v1::Method::kKto:
      options.examples.kind = RecordKind::kKto;
      // As in TRL, of held-out rows, too.
      if (method.kto().loss_type() == "kto") {
        options.rotation_rows = spec.training().per_device_train_batch_size();
      }
      break;
    case v1::Method::kReward:
      options.examples.kind = RecordKind::kReward;
      break;
    case v1::Method::kGkd:
      options.examples.kind = RecordKind::kGkd;
      break;
    case v1::Method::kGrpo:
    case v1::Method::kRloo:
    case v1::Method::kOnlineDpo:
    case v1::Method::kPpo:
      options.examples.kind = RecordKind::kPrompt;
      options.examples.prompts_get_special_tokens = !method.has_online_dpo();
      break;
    case v1::Method::kSft:
    case v1::Method::KIND_NOT_SET:
      set_sft(method.sft(), held_out, options);
      break;
  }
}

}  // namespace

DatasetOptions dataset_options(const v1::JobSpec& spec, bool held_out, int64_t vocab_size) {
  const spec::MethodFields fields = spec::method_fields(spec.method());
  DatasetOptions options;
  options.sources = sources_of(spec.data(), held_out);
  options.stopping = spec.data().mixture_stopping_strategy() == "all_exhausted"
                         ? StoppingStrategy::kAllExhausted
                         : StoppingStrategy::kFirstExhausted;
  options.mixture_seed = static_cast<uint64_t>(spec.training().seed());
  options.cache = {spec.data().cache_dir(), spec.data().cache_max_bytes()};
  options.num_threads = spec.resources().cpu_threads();
  options.examples.method = fields.method;
  options.examples.has_eos_field = fields.has_eos_field;
  options.examples.tokenizer = tokenizer_directory(spec);
  options.examples.eos_token = fields.eos_token;
  options.examples.chat_template_path = fields.chat_template_path;
  options.max_length = fields.max_length;
  options.max_length_field = fields.field("max_length");
  options.vocab_size = vocab_size;
  set_method(spec, held_out, options);
  if (spec::makes_completions(spec, held_out) || (!held_out && !spec.data().rollouts().empty()))
    options.rollouts = rollout_options(held_out ? spec::evaluation_job(spec) : spec, held_out);
  return options;
}

std::filesystem::path tokenizer_directory(const v1::JobSpec& spec) {
  return spec.model().tokenizer().empty() ? spec.model().path() : spec.model().tokenizer();
}

}  // namespace tessera
