// ModelConfig, ScriptArguments and DatasetMixtureConfig of TRL 1.16; and, last, names that earlier
// versions had and files still hold.
#include "client/trl/keys.h"

namespace tessera::trl {
namespace {

using enum Fate;

constexpr Key kScriptKeys[] = {
    {"model_name_or_path", kAll, kSpecial},
    {"model_revision", kAll, kRefused, "", "main",
     "a directory has one revision; download that one"},
    {"dtype", kAll, kSpecial},
    {"attn_implementation", kAll, kNoted, "", "",
     "attention is Tessera's own, and never crosses documents"},
    {"use_peft", kAll, kSpecial},
    {"lora_r", kAll, kField, "peft.lora_r"},
    {"lora_alpha", kAll, kField, "peft.lora_alpha"},
    {"lora_dropout", kAll, kField, "peft.lora_dropout"},
    {"lora_target_modules", kAll, kField, "peft.lora_target_modules"},
    {"lora_target_parameters", kAll, kRefused, "", "",
     "adapters are of linear layers; use lora_target_modules"},
    {"lora_modules_to_save", kAll, kField, "peft.lora_modules_to_save"},
    {"lora_task_type", kAll, kNoted, "", "", "it follows the method"},
    {"use_rslora", kAll, kField, "peft.use_rslora"},
    {"use_dora", kAll, kField, "peft.use_dora"},
    {"load_in_8bit", kAll, kSpecial},
    {"load_in_4bit", kAll, kSpecial},
    {"bnb_4bit_quant_type", kAll, kRefused, "", "nf4", "of the 4-bit types nf4 is built"},
    {"use_bnb_nested_quant", kAll, kField, "peft.use_bnb_nested_quant"},
    {"bnb_4bit_quant_storage", kAll, kNoted, "", "", "4-bit weights are sharded as they are kept"},

    {"dataset_name", kAll, kSpecial},
    {"dataset_config", kAll, kSpecial},
    {"dataset_train_split", kAll, kSpecial},
    {"dataset_test_split", kAll, kSpecial},
    {"dataset_streaming", kAll, kNoted, "", "", "documents are never held in memory"},
    {"ignore_bias_buffers", kAll, kNoted, "", "", "models have no such buffers here"},
    {"datasets", kAll, kSpecial},
    {"streaming", kAll, kNoted, "", "", "documents are never held in memory"},
    {"test_split_size", kAll, kRefused, "", "",
     "documents are not split when a job starts; write the held-out ones to a file of their own "
     "and give --eval FILE"},
    {"reward_model_name_or_path", kOnline, kSpecial},
    {"reward_funcs", kOnline, kSpecial},
    {"env", kAll, kSpecial},
    {"accelerate_config", kAll, kSpecial},

    {"torch_dtype", kAll, kSpecial},
    {"max_seq_length", kSft, kSpecial},
    {"warmup_ratio", kAll, kField, "training.warmup_ratio"},
    {"logging_dir", kAll, kField, "training.logging_dir"},
    {"evaluation_strategy", kAll, kField, "training.eval_strategy"},
    {"overwrite_output_dir", kAll, kNoted, "", "", "a job goes on from what its output_dir holds"},
    {"save_safetensors", kAll, kRefused, "", "true", "weights are always safetensors"},
    {"group_by_length", kAll, kRefused, "", "false",
     "rows of a like length are not grouped; packing avoids padding better"},
    {"max_prompt_length", kAll, kRefused, "", "",
     "TRL 1.16 no longer has it; leave prompts that are too long out of the data"},
};

}  // namespace

std::span<const Key> script_keys() { return kScriptKeys; }

}  // namespace tessera::trl
