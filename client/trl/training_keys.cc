// TrainingArguments of transformers 5.23, and what TRL 1.16 adds to all of its methods.
#include "client/trl/keys.h"

namespace tessera::trl {
namespace {

using enum Fate;

constexpr char kPresence[] = "";
constexpr char kShown[] = "progress and logs are the client's matter: `tessera watch`, `logs`";
constexpr char kOwnRows[] = "the trainer reads, tokenises and caches its own rows";
constexpr char kNoDdp[] = "ranks exchange gradients by Tessera's own collectives";
constexpr char kEvaluates[] = "evaluation sums its metrics over tokens and keeps no outputs";
constexpr char kHub[] = "results stay on this machine";
constexpr char kTrackio[] = "metrics go to /metrics, the status page and TensorBoard files";
constexpr char kNoFloat16[] = "float16 is not built; use bf16: true";

constexpr Key kTrainingKeys[] = {
    {"output_dir", kAll, kSpecial},
    {"per_device_train_batch_size", kAll, kField, "training.per_device_train_batch_size"},
    {"per_device_eval_batch_size", kAll, kField, "training.per_device_eval_batch_size"},
    {"gradient_accumulation_steps", kAll, kField, "training.gradient_accumulation_steps"},
    {"num_train_epochs", kAll, kField, "training.num_train_epochs"},
    {"max_steps", kAll, kField, "training.max_steps"},
    {"learning_rate", kAll, kField, "training.learning_rate"},
    {"lr_scheduler_type", kAll, kField, "training.lr_scheduler_type"},
    {"lr_scheduler_kwargs", kAll, kSpecial},
    {"warmup_steps", kAll, kField, "training.warmup_steps"},
    {"optim", kAll, kSpecial},
    {"optim_args", kAll, kRefused, "", kPresence,
     "AdamW takes adam_beta1, adam_beta2, adam_epsilon and weight_decay only"},
    {"optim_target_modules", kAll, kRefused, "", kPresence,
     "GaLore and the like are not built; for less memory use peft, or "
     "memory.optimizer_state_dtype: int8"},
    {"weight_decay", kAll, kField, "training.weight_decay"},
    {"adam_beta1", kAll, kField, "training.adam_beta1"},
    {"adam_beta2", kAll, kField, "training.adam_beta2"},
    {"adam_epsilon", kAll, kField, "training.adam_epsilon"},
    {"average_tokens_across_devices", kAll, kField, "training.average_tokens_across_devices"},
    {"max_grad_norm", kAll, kField, "training.max_grad_norm"},
    {"label_smoothing_factor", kAll, kField, "training.label_smoothing_factor"},
    {"neftune_noise_alpha", kAll, kField, "training.neftune_noise_alpha"},

    {"bf16", kAll, kSpecial},
    {"fp16", kAll, kRefused, "", "false", kNoFloat16},
    {"bf16_full_eval", kAll, kNoted, "", "", "evaluation computes in model.dtype"},
    {"fp16_full_eval", kAll, kRefused, "", "false", kNoFloat16},
    {"tf32", kAll, kNoted, "", "", "float32 is computed as float32, bfloat16 as bfloat16"},
    {"activation_checkpointing", kAll, kSpecial},
    {"activation_checkpointing_kwargs", kAll, kSpecial},
    {"gradient_checkpointing", kAll, kSpecial},
    {"gradient_checkpointing_kwargs", kAll, kSpecial},
    {"activation_offloading", kAll & ~kOnline, kField, "memory.activation_offloading"},
    {"torch_compile", kAll, kNoted, "", "",
     "kernels are compiled with Tessera; only speed is concerned"},
    {"torch_compile_backend", kAll, kNoted, "", "", "kernels are compiled with Tessera"},
    {"torch_compile_mode", kAll, kNoted, "", "", "kernels are compiled with Tessera"},
    {"use_liger_kernel", kAll, kNoted, "", "",
     "the head is always fused with the loss: logits are never held"},
    {"liger_kernel_config", kAll, kNoted, "", "", "the head is always fused with the loss"},
    {"use_cache", kAll, kNoted, "", "", "training keeps no cache of keys and values"},
    {"torch_empty_cache_steps", kAll, kNoted, "", "",
     "the memory ledger bounds the allocator: resources.device_memory"},
    {"auto_find_batch_size", kAll, kRefused, "", "false",
     "the batch stays as written; use memory.auto: true, or memory.on_oom: replan"},

    {"logging_strategy", kAll, kField, "training.logging_strategy"},
    {"logging_steps", kAll, kField, "training.logging_steps"},
    {"logging_first_step", kAll, kField, "training.logging_first_step"},
    {"log_on_each_node", kAll, kNoted, "", "", kShown},
    {"logging_nan_inf_filter", kAll, kNoted, "", "", "a loss that is not finite ends the job"},
    {"include_num_input_tokens_seen", kAll, kNoted, "", "", "tokens are always counted"},
    {"log_level", kAll, kNoted, "", "", kShown},
    {"log_level_replica", kAll, kNoted, "", "", kShown},
    {"disable_tqdm", kAll, kNoted, "", "", kShown},
    {"report_to", kAll, kSpecial},
    {"run_name", kAll, kSpecial},
    {"project", kAll, kNoted, "", "", kTrackio},
    {"trackio_space_id", kAll, kNoted, "", "", kTrackio},
    {"trackio_bucket_id", kAll, kNoted, "", "", kTrackio},
    {"trackio_static_space_id", kAll, kNoted, "", "", kTrackio},

    {"eval_strategy", kAll, kField, "training.eval_strategy"},
    {"eval_steps", kAll, kField, "training.eval_steps"},
    {"eval_delay", kAll, kField, "training.eval_delay"},
    {"eval_on_start", kAll, kField, "training.eval_on_start"},
    {"prediction_loss_only", kAll, kNoted, "", "", kEvaluates},
    {"eval_do_concat_batches", kAll, kNoted, "", "", kEvaluates},
    {"eval_use_gather_object", kAll, kNoted, "", "", kEvaluates},
    {"eval_accumulation_steps", kAll, kNoted, "", "", kEvaluates},
    {"include_for_metrics", kAll, kNoted, "", "", kEvaluates},
    {"batch_eval_metrics", kAll, kNoted, "", "", kEvaluates},
    {"save_only_model", kAll, kNoted, "", "",
     "a checkpoint always holds what it takes to go on exactly; `tessera export` makes a model of "
     "one"},
    {"save_strategy", kAll, kField, "training.save_strategy"},
    {"save_steps", kAll, kField, "training.save_steps"},
    {"save_on_each_node", kAll, kNoted, "", "", "each rank writes its part once"},
    {"save_total_limit", kAll, kField, "training.save_total_limit"},
    {"enable_jit_checkpoint", kAll, kNoted, "", "",
     "a job that is preempted writes a checkpoint within resources.grace_period"},
    {"push_to_hub", kAll, kRefused, "", "false",
     "results stay on this machine; upload output_dir/final afterwards"},
    {"hub_token", kAll, kNoted, "", "", kHub},
    {"hub_private_repo", kAll, kNoted, "", "", kHub},
    {"hub_model_id", kAll, kNoted, "", "", kHub},
    {"hub_strategy", kAll, kNoted, "", "", kHub},
    {"hub_always_push", kAll, kNoted, "", "", kHub},
    {"hub_revision", kAll, kNoted, "", "", kHub},
    {"load_best_model_at_end", kAll, kField, "training.load_best_model_at_end"},
    {"metric_for_best_model", kAll, kField, "training.metric_for_best_model"},
    {"greater_is_better", kAll, kField, "training.greater_is_better"},
    {"ignore_data_skip", kAll, kField, "training.ignore_data_skip"},
    {"restore_callback_states_from_checkpoint", kAll, kNoted, "", "",
     "early stopping always goes on from its checkpoint"},
    {"resume_from_checkpoint", kAll, kSpecial},

    {"full_determinism", kAll, kNoted, "", "", "runs are deterministic as they are"},
    {"seed", kAll, kField, "training.seed"},
    {"data_seed", kAll, kRefused, "", kPresence, "seed draws everything; remove it, or set seed"},
    {"use_cpu", kAll, kSpecial},
    {"accelerator_config", kAll, kSpecial},
    {"parallelism_config", kAll, kSpecial},
    {"dataloader_drop_last", kAll, kField, "training.dataloader_drop_last"},
    {"dataloader_num_workers", kAll, kNoted, "", "", kOwnRows},
    {"dataloader_pin_memory", kAll, kNoted, "", "", kOwnRows},
    {"dataloader_persistent_workers", kAll, kNoted, "", "", kOwnRows},
    {"dataloader_prefetch_factor", kAll, kNoted, "", "", kOwnRows},
    {"dataloader_multiprocessing_context", kAll, kNoted, "", "", kOwnRows},
    {"dataloader_in_order", kAll, kRefused, "", "true",
     "rows always come in their order; remove it"},
    {"remove_unused_columns", kAll, kNoted, "", "",
     "only the columns of the format are read; rewards see them all"},
    {"label_names", kAll, kRefused, "", kPresence, "labels are made of the documents; remove it"},
    {"train_sampling_strategy", kAll, kField, "training.train_sampling_strategy"},
    {"length_column_name", kAll, kNoted, "", "", "lengths are measured"},
    {"ddp_find_unused_parameters", kAll, kNoted, "", "", kNoDdp},
    {"ddp_bucket_cap_mb", kAll, kNoted, "", "", kNoDdp},
    {"ddp_broadcast_buffers", kAll, kNoted, "", "", kNoDdp},
    {"ddp_static_graph", kAll, kNoted, "", "", kNoDdp},
    {"ddp_backend", kAll, kNoted, "", "", "it follows resources.device"},
    {"ddp_timeout", kAll, kSpecial},
    {"fsdp", kAll, kSpecial},
    {"fsdp_config", kAll, kSpecial},
    {"deepspeed", kAll, kRefused, "", kPresence,
     "its own file is not read; say zero_stage and the offload devices in an accelerate file, and "
     "give that with --accelerate"},
    {"debug", kAll, kNoted, "", "",
     "a job that overflows says where; traces: training.profile_steps"},
    {"skip_memory_metrics", kAll, kNoted, "", "", "memory is always measured: `tessera get`"},
    {"do_train", kAll, kNoted, "", "", "a job always trains"},
    {"do_eval", kAll, kNoted, "", "", "eval_strategy decides"},
    {"do_predict", kAll, kRefused, "", "false",
     "a job does not predict; use `tessera generate` afterwards"},
    {"local_rank", kAll, kNoted, "", "", "the agent numbers ranks"},

    {"model_init_kwargs", kAll, kSpecial},
    {"trust_remote_code", kAll, kRefused, "", "false",
     "no code of a model is run; docs/models.md has what is built in"},
    {"dataset_num_proc", kAll & ~kOnline, kNoted, "", "", kOwnRows},
};

}  // namespace

std::span<const Key> training_keys() { return kTrainingKeys; }

}  // namespace tessera::trl
