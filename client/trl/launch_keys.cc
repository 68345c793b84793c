// ClusterConfig of accelerate 1.15, with the keys of its sections, and its launcher's names for
// them.
#include "client/trl/keys.h"

namespace tessera::trl {
namespace {

using enum Fate;

constexpr char kPlaced[] =
    "the scheduler places ranks on machines and devices, and the agents introduce them";
constexpr char kNoTpu[] = "there are no TPUs here";
constexpr char kCompiled[] = "kernels are compiled with Tessera; only speed is concerned";
constexpr char kNoFp8[] = "8-bit floating point is not built; use bf16";
constexpr char kNoMegatron[] =
    "tensor and pipeline parallelism are not built; use FSDP's or ZeRO's sharding";
constexpr char kUnits[] = "a block is the unit that is sharded, gathered and freed";
constexpr char kOverlap[] = "gathers are overlapped with compute by themselves";
constexpr char kStates[] = "checkpoints are sharded; the final directory is a Hugging Face one";
constexpr char kLoads[] = "each rank reads only its shards";
constexpr char kSequence[] = "documents are shared by cp_size ranks whatever their length";

constexpr Key kLaunchKeys[] = {
    {"compute_environment", kAll, kRefused, "", "local_machine", "jobs run where their agents run"},
    {"distributed_type", kAll, kSpecial},
    {"mixed_precision", kAll, kSpecial},
    {"use_cpu", kAll, kSpecial},
    {"debug", kAll, kNoted, "", "", "collectives that do not match are always told"},
    {"num_processes", kAll, kSpecial},
    {"machine_rank", kAll, kNoted, "", "", kPlaced},
    {"num_machines", kAll, kSpecial},
    {"gpu_ids", kAll, kNoted, "", "", kPlaced},
    {"main_process_ip", kAll, kNoted, "", "", kPlaced},
    {"main_process_port", kAll, kNoted, "", "", kPlaced},
    {"rdzv_backend", kAll, kNoted, "", "", kPlaced},
    {"same_network", kAll, kNoted, "", "", kPlaced},
    {"main_training_function", kAll, kNoted, "", "", "there is no script"},
    {"enable_cpu_affinity", kAll, kNoted, "", "", kPlaced},
    {"mpirun_config", kAll, kNoted, "", "", kPlaced},
    {"downcast_bf16", kAll, kRefused, "", "no|false", kNoTpu},
    {"tpu_name", kAll, kRefused, "", "", kNoTpu},
    {"tpu_zone", kAll, kRefused, "", "", kNoTpu},
    {"tpu_use_cluster", kAll, kRefused, "", "false", kNoTpu},
    {"tpu_use_sudo", kAll, kRefused, "", "false", kNoTpu},
    {"tpu_vm", kAll, kRefused, "", "", kNoTpu},
    {"tpu_env", kAll, kRefused, "", "", kNoTpu},
    {"command_file", kAll, kRefused, "", "", "no commands are run on machines"},
    {"commands", kAll, kRefused, "", "", "no commands are run on machines"},
    {"fp8_config", kAll, kRefused, "", "", kNoFp8},
    {"megatron_lm_config", kAll, kRefused, "", "", kNoMegatron},
    {"dynamo_config", kAll, kNoted, "", "", kCompiled},
    {"dynamo_backend", kAll, kNoted, "", "", kCompiled},
    {"fp16", kAll, kRefused, "", "false", "float16 is not built; use mixed_precision: bf16"},
    {"use_deepspeed", kAll, kSpecial},
    {"use_fsdp", kAll, kSpecial},
    {"multi_gpu", kAll, kSpecial},
    {"use_megatron_lm", kAll, kRefused, "", "false", kNoMegatron},
    {"use_parallelism_config", kAll, kNoted, "", "", "the sizes say it"},
    {"cpu", kAll, kSpecial},

    {"deepspeed_config_file", kAll, kRefused, "", "",
     "DeepSpeed's own file is not read; say zero_stage, offload_optimizer_device and "
     "offload_param_device here"},
    {"zero_stage", kAll, kSpecial},
    {"offload_optimizer_device", kAll, kSpecial},
    {"offload_param_device", kAll, kSpecial},
    {"offload_optimizer_nvme_path", kAll, kRefused, "", "none",
     "offload_optimizer_device is none or cpu"},
    {"offload_param_nvme_path", kAll, kRefused, "", "none", "offload_param_device is none or cpu"},
    {"gradient_accumulation_steps", kAll, kNoted, "", "", "that of the TRL file counts, as in TRL"},
    {"gradient_clipping", kAll, kSpecial},
    {"zero3_init_flag", kAll, kNoted, "", "", kLoads},
    {"zero3_save_16bit_model", kAll, kNoted, "", "", kStates},
    {"deepspeed_hostfile", kAll, kNoted, "", "", kPlaced},
    {"deepspeed_exclusion_filter", kAll, kNoted, "", "", kPlaced},
    {"deepspeed_inclusion_filter", kAll, kNoted, "", "", kPlaced},
    {"deepspeed_multinode_launcher", kAll, kNoted, "", "", kPlaced},
    {"deepspeed_moe_layer_cls_names", kAll, kNoted, "", "", kUnits},

    {"fsdp_version", kAll, kNoted, "", "", "both versions shard alike"},
    {"fsdp_sharding_strategy", kAll, kSpecial},
    {"fsdp_reshard_after_forward", kAll, kSpecial},
    {"fsdp_offload_params", kAll, kSpecial},
    {"fsdp_activation_checkpointing", kAll, kSpecial},
    {"fsdp_activation_checkpointing_offload", kAll, kSpecial},
    {"fsdp_xla", kAll, kRefused, "", "false", kNoTpu},
    {"fsdp_xla_fsdp_v2", kAll, kRefused, "", "false", kNoTpu},
    {"fsdp_xla_fsdp_grad_ckpt", kAll, kRefused, "", "false", kNoTpu},
    {"fsdp_xla_fsdp_settings", kAll, kRefused, "", "", kNoTpu},
    {"fsdp_min_num_params", kAll, kNoted, "", "", kUnits},
    {"fsdp_auto_wrap_policy", kAll, kNoted, "", "", kUnits},
    {"fsdp_transformer_layer_cls_to_wrap", kAll, kNoted, "", "", kUnits},
    {"fsdp_backward_prefetch", kAll, kNoted, "", "", kOverlap},
    {"fsdp_forward_prefetch", kAll, kNoted, "", "", kOverlap},
    {"fsdp_limit_all_gathers", kAll, kNoted, "", "", kOverlap},
    {"fsdp_state_dict_type", kAll, kNoted, "", "", kStates},
    {"fsdp_use_orig_params", kAll, kNoted, "", "", "frozen and trained weights go together"},
    {"fsdp_cpu_ram_efficient_loading", kAll, kNoted, "", "", kLoads},
    {"fsdp_sync_module_states", kAll, kNoted, "", "", kLoads},

    {"parallelism_config_dp_replicate_size", kAll, kSpecial},
    {"parallelism_config_dp_shard_size", kAll, kSpecial},
    {"parallelism_config_tp_size", kAll, kRefused, "", "1",
     "tensor parallelism is not built; use dp_shard_size"},
    {"parallelism_config_cp_size", kAll, kSpecial},
    {"parallelism_config_cp_backend", kAll, kNoted, "", "", "context parallelism is Tessera's own"},
    {"parallelism_config_cp_comm_strategy", kAll, kSpecial},
    {"parallelism_config_sp_size", kAll, kSpecial},
    {"parallelism_config_sp_backend", kAll, kNoted, "", "", "context parallelism is Tessera's own"},
    {"parallelism_config_sp_seq_length", kAll, kNoted, "", "", kSequence},
    {"parallelism_config_sp_seq_length_is_variable", kAll, kNoted, "", "", kSequence},
    {"parallelism_config_sp_attn_implementation", kAll, kNoted, "", "",
     "attention is Tessera's own"},
};

}  // namespace

std::span<const Key> launch_keys() { return kLaunchKeys; }

}  // namespace tessera::trl
