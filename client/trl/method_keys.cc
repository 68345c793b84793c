// What SFTConfig, DPOConfig, KTOConfig, RewardConfig, GRPOConfig and RLOOConfig of TRL 1.16 add.
#include "client/trl/keys.h"

namespace tessera::trl {
namespace {

using enum Fate;

constexpr unsigned kRefs = kDpo | kKto | kOnline;
constexpr char kOwnEngine[] = "the trainer makes completions itself, with the weights that train";
constexpr char kNoServer[] = "there is no vLLM server: the trainer makes completions itself";
constexpr char kPadsNothing[] = "no pad token is ever computed";
constexpr char kRecords[] = "generation.record_to: DIRECTORY writes all completions";
constexpr char kNoEntropy[] = "a bonus for entropy is not built";
constexpr char kOfAdaptive[] = "without effect unless use_adaptive_entropy, which is not built";

constexpr Key kMethodKeys[] = {
    {"max_length", kAll & ~kOnline, kSpecial},
    {"pad_to_multiple_of", kAll, kField, "%.pad_to_multiple_of", "auto|none|null"},
    {"pad_token", kSft | kDpo | kReward, kNoted, "", "", kPadsNothing},
    {"padding_free", kSft | kDpo, kField, "%.padding_free"},
    {"eos_token", kSft | kReward, kField, "%.eos_token"},
    {"chat_template_path", kSft | kReward, kField, "%.chat_template_path"},
    {"router_aux_loss_coef", kAll & ~kReward, kField, "%.router_aux_loss_coef"},
    {"disable_dropout", kAll & ~kSft, kField, "%.disable_dropout"},
    {"loss_type", kAll & ~(kReward | kRloo), kField, "%.loss_type"},
    {"beta", kRefs, kField, "%.beta"},
    {"sync_ref_model", kRefs, kField, "%.sync_ref_model"},
    {"ref_model_mixup_alpha", kRefs, kField, "%.ref_model_mixup_alpha"},
    {"ref_model_sync_steps", kRefs, kField, "%.ref_model_sync_steps"},
    {"precompute_ref_log_probs", kDpo | kKto, kField, "%.precompute_ref_log_probs"},
    {"precompute_ref_batch_size", kDpo | kKto, kField, "%.precompute_ref_batch_size"},

    {"dataset_text_field", kSft, kField, "%.dataset_text_field"},
    {"dataset_kwargs", kSft, kSpecial},
    {"truncation_mode", kSft, kRefused, "", "keep_start",
     "supervised documents lose their end; use keep_start"},
    {"truncation_mode", kDpo, kField, "%.truncation_mode"},
    {"shuffle_dataset", kSft, kNoted, "", "",
     "an epoch's rows are drawn in random order; training.train_sampling_strategy says otherwise"},
    {"packing", kSft, kField, "%.packing"},
    {"packing_strategy", kSft, kField, "%.packing_strategy"},
    {"eval_packing", kSft, kField, "%.eval_packing"},
    {"completion_only_loss", kSft, kField, "%.completion_only_loss"},
    {"assistant_only_loss", kSft, kField, "%.assistant_only_loss"},

    {"loss_weights", kDpo, kField, "%.loss_weights"},
    {"ld_alpha", kDpo, kField, "%.ld_alpha"},
    {"f_divergence_type", kDpo, kField, "%.f_divergence_type"},
    {"f_alpha_divergence_coef", kDpo, kField, "%.f_alpha_divergence_coef"},
    {"label_smoothing", kDpo, kField, "%.label_smoothing"},
    {"use_weighting", kDpo, kField, "%.use_weighting"},
    {"discopop_tau", kDpo, kField, "%.discopop_tau"},

    {"desirable_weight", kKto, kField, "%.desirable_weight"},
    {"undesirable_weight", kKto, kField, "%.undesirable_weight"},

    {"center_rewards_coefficient", kReward, kField, "%.center_rewards_coefficient"},

    {"num_generations", kOnline, kField, "%.num_generations"},
    {"num_generations_eval", kOnline, kField, "%.num_generations_eval"},
    {"max_completion_length", kOnline, kField, "%.max_completion_length"},
    {"generation_batch_size", kOnline, kField, "%.generation_batch_size"},
    {"steps_per_generation", kOnline, kField, "%.steps_per_generation"},
    {"shuffle_dataset", kOnline, kField, "training.shuffle_dataset"},
    {"temperature", kOnline, kField, "%.temperature"},
    {"top_p", kOnline, kField, "%.top_p"},
    {"top_k", kOnline, kField, "%.top_k"},
    {"min_p", kOnline, kField, "%.min_p"},
    {"repetition_penalty", kOnline, kField, "%.repetition_penalty"},
    {"generation_kwargs", kOnline, kSpecial},
    {"chat_template_kwargs", kOnline, kRefused, "", "",
     "chat templates get no arguments; set them in the template"},
    {"cache_implementation", kOnline, kNoted, "", "", "the cache of keys and values is paged"},
    {"ds3_gather_for_generation", kOnline, kSpecial},
    {"use_vllm", kOnline, kNoted, "", "", kOwnEngine},
    {"vllm_mode", kOnline, kNoted, "", "", kOwnEngine},
    {"vllm_model_impl", kOnline, kNoted, "", "", kOwnEngine},
    {"vllm_enable_sleep_mode", kOnline, kField, "generation.enable_sleep_mode"},
    {"vllm_structured_outputs_regex", kOnline, kRefused, "", "",
     "completions are not constrained; a reward of kind regex judges them"},
    {"vllm_server_base_url", kOnline, kNoted, "", "", kNoServer},
    {"vllm_server_host", kOnline, kNoted, "", "", kNoServer},
    {"vllm_server_port", kOnline, kNoted, "", "", kNoServer},
    {"vllm_server_timeout", kOnline, kNoted, "", "", kNoServer},
    {"vllm_group_port", kOnline, kNoted, "", "", kNoServer},
    {"vllm_gpu_memory_utilization", kOnline, kNoted, "", "",
     "the cache takes what all completions of a rank need; generation.kv_cache_memory bounds it"},
    {"vllm_max_model_length", kOnline, kNoted, "", "",
     "a completion ends after max_completion_length tokens, whatever its prompt"},
    {"vllm_tensor_parallel_size", kOnline, kNoted, "", "",
     "weights are gathered or go by block: generation.weights"},
    {"vllm_importance_sampling_correction", kGrpo, kField, "%.vllm_importance_sampling_correction"},
    {"vllm_importance_sampling_mode", kGrpo, kField, "%.vllm_importance_sampling_mode"},
    {"vllm_importance_sampling_clip_max", kGrpo, kField, "%.vllm_importance_sampling_clip_max"},
    {"vllm_importance_sampling_clip_min", kGrpo, kField, "%.vllm_importance_sampling_clip_min"},
    {"vllm_importance_sampling_cap", kGrpo, kField, "%.vllm_importance_sampling_clip_max"},
    {"use_transformers_continuous_batching", kOnline, kNoted, "", "",
     "completions are batched continuously"},
    {"transformers_continuous_batching_config", kOnline, kNoted, "", "",
     "generation.max_num_seqs and generation.max_num_batched_tokens bound a pass"},
    {"use_transformers_paged", kOnline, kNoted, "", "", "the cache of keys and values is paged"},

    {"num_iterations", kOnline, kField, "%.num_iterations"},
    {"epsilon", kOnline, kField, "%.epsilon"},
    {"epsilon_high", kOnline, kField, "%.epsilon_high"},
    {"reward_weights", kOnline, kField, "%.reward_weights"},
    {"mask_truncated_completions", kOnline, kField, "%.mask_truncated_completions"},
    {"normalize_advantages", kRloo, kField, "%.normalize_advantages"},
    {"reward_clip_range", kRloo, kField, "%.reward_clip_range"},
    {"delta", kGrpo, kField, "%.delta"},
    {"sapo_temperature_neg", kGrpo, kField, "%.sapo_temperature_neg"},
    {"sapo_temperature_pos", kGrpo, kField, "%.sapo_temperature_pos"},
    {"vespo_k_pos", kGrpo, kField, "%.vespo_k_pos"},
    {"vespo_lambda_pos", kGrpo, kField, "%.vespo_lambda_pos"},
    {"vespo_k_neg", kGrpo, kField, "%.vespo_k_neg"},
    {"vespo_lambda_neg", kGrpo, kField, "%.vespo_lambda_neg"},
    {"importance_sampling_level", kGrpo, kField, "%.importance_sampling_level"},
    {"multi_objective_aggregation", kGrpo, kField, "%.multi_objective_aggregation"},
    {"scale_rewards", kGrpo, kSpecial},
    {"top_entropy_quantile", kGrpo, kField, "%.top_entropy_quantile"},
    {"off_policy_mask_threshold", kGrpo, kField, "%.off_policy_mask_threshold"},
    {"use_bias_correction_kl", kGrpo, kField, "%.use_bias_correction_kl"},
    {"cast_lm_head_to_fp32", kGrpo, kRefused, "", "false",
     "the head computes in model.dtype; use bf16: false for a float32 head"},
    {"entropy_coef", kGrpo, kRefused, "", "0|0.0", kNoEntropy},
    {"use_adaptive_entropy", kGrpo, kRefused, "", "false", kNoEntropy},
    {"entropy_coef_min", kGrpo, kNoted, "", "", kOfAdaptive},
    {"entropy_coef_max", kGrpo, kNoted, "", "", kOfAdaptive},
    {"entropy_coef_delta", kGrpo, kNoted, "", "", kOfAdaptive},
    {"entropy_target", kGrpo, kNoted, "", "", kOfAdaptive},
    {"max_tool_calling_iterations", kGrpo, kRefused, "", "",
     "completions call no tools while they are made"},
    {"log_completions", kOnline, kNoted, "", "", kRecords},
    {"log_multimodal", kOnline, kNoted, "", "", "models are of text"},
    {"num_completions_to_print", kOnline, kNoted, "", "", kRecords},
    {"log_unique_prompts", kOnline, kNoted, "", "", kRecords},
    {"log_completions_hub_repo", kGrpo, kRefused, "", "",
     "nothing is uploaded; generation.record_to: DIRECTORY writes all completions"},
};

}  // namespace

std::span<const Key> method_keys() { return kMethodKeys; }

}  // namespace tessera::trl
