// Keys of training and of launching that are more than one field.
#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/trl/datasets.h"
#include "client/trl/translate.h"
#include "client/trl/values.h"

namespace tessera::trl {
namespace {

using Kind = YamlNode::Kind;

constexpr size_t kMaxName = 63;

struct Preset {
  const char* name;
  const char* text;
};

// What TRL brings along for --accelerate_config, as far as it decides anything.
constexpr Preset kPresets[] = {
    {"single_gpu", "{distributed_type: NO, mixed_precision: bf16}"},
    {"multi_gpu", "{distributed_type: MULTI_GPU, num_processes: 8, mixed_precision: bf16}"},
    {"fsdp1", "{distributed_type: FSDP, num_processes: 8, fsdp_sharding_strategy: FULL_SHARD}"},
    {"fsdp2", "{distributed_type: FSDP, num_processes: 8, fsdp_reshard_after_forward: true}"},
    {"zero1", "{distributed_type: DEEPSPEED, num_processes: 8, zero_stage: 1}"},
    {"zero2", "{distributed_type: DEEPSPEED, num_processes: 8, zero_stage: 2}"},
    {"zero3", "{distributed_type: DEEPSPEED, num_processes: 8, zero_stage: 3}"},
};

YamlEntry made(const char* key, const std::string& value, const YamlEntry& from) {
  YamlNode node;
  node.kind = Kind::kScalar;
  node.scalar = value;
  node.mark = from.mark;
  return {key, from.mark, node};
}

}  // namespace

void Translator::output_dir(const YamlEntry& entry) {
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  if (entry.value.kind != Kind::kScalar) return refuse(entry, "it must be a path");
  const std::string& name = entry.value.scalar;
  if (name.starts_with('~')) return refuse(entry, "a job file knows no home; write the whole path");
  draft_.set("training.output_dir", yaml_text(local_path(name, options_.directory).string()));
}

void Translator::run_name(const YamlEntry& entry) {
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  if (entry.value.kind != Kind::kScalar) return refuse(entry, "it must be a text");
  std::string name = entry.value.scalar.substr(0, kMaxName);
  std::ranges::replace_if(
      name, [](char c) { return !absl::ascii_isalnum(c) && c != '.' && c != '_'; }, '-');
  draft_.set("name", yaml_text(name));
}

void Translator::scheduler(const YamlEntry& entry) {
  for (const YamlEntry& inner : section_of(entry).entries) {
    const std::string path = absl::StrCat("training.lr_scheduler_kwargs.", inner.key);
    const YamlEntry named = within(entry, inner);
    if (job_field(path) == nullptr) {
      refuse(named, "no schedule takes it");
    } else if (is_nothing(inner.value)) {
      note(named, "the same as without it");
    } else {
      copy_to(named, path);
    }
  }
}

void Translator::optim(const YamlEntry& entry) {
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  if (is_one_of(entry.value, "adamw_torch|adamw_torch_fused")) {
    return copy_to(entry, "training.optim");
  }
  if (is_one_of(entry.value, "adamw_bnb_8bit|adamw_8bit|paged_adamw_8bit")) {
    return draft_.set(
        "memory.optimizer_state_dtype", "int8",
        {absl::StrCat("optim: ", entry.value.scalar, ". Block-wise 8-bit states; not paged:"),
         "memory.offload_optimizer_device: cpu keeps them in host memory."});
  }
  if (is_one_of(entry.value, "paged_adamw|paged_adamw_32bit")) {
    return note(entry,
                "AdamW; memory.offload_optimizer_device: cpu keeps its states in host memory");
  }
  refuse(entry, "the optimizer is AdamW: adamw_torch_fused, adamw_torch or adamw_8bit");
}

void Translator::bf16(const YamlEntry& entry) {
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  bf16_ = as_bool(entry.value);
  if (!bf16_) refuse(entry, "it must be true or false");
}

void Translator::checkpointing(const YamlEntry& entry) {
  const bool is_new = entry.key == "activation_checkpointing";
  if (is_new && is_nothing(entry.value)) return note(entry, "the same as without it");
  if (!is_new && has_activation_checkpointing_) {
    return note(entry, "activation_checkpointing is given, too, and counts");
  }
  // None is false here: TRL's default is true, and transformers takes None for no.
  const auto value = is_nothing(entry.value) ? std::optional(false) : as_bool(entry.value);
  if (!value) return refuse(entry, "it must be true or false");
  has_activation_checkpointing_ = has_activation_checkpointing_ || is_new;
  draft_.set("memory.gradient_checkpointing", *value ? "true" : "false");
}

void Translator::checkpointing_kwargs(const YamlEntry& entry) {
  for (const YamlEntry& inner : section_of(entry).entries) {
    const YamlEntry named = within(entry, inner);
    if (inner.key == "every_n_layers") {
      copy_to(named, "memory.gradient_checkpointing_every");
    } else if (inner.key == "use_reentrant" || inner.key == "preserve_rng_state" ||
               inner.key == "determinism_check" || inner.key == "early_stop" ||
               inner.key == "debug") {
      note(named, "blocks are run again exactly, with the draws of the first time");
    } else {
      refuse(named, "there is no such choice; see memory.gradient_checkpointing_policy");
    }
  }
}

void Translator::report_to(const YamlEntry& entry) {
  if (is_nothing(entry.value)) return note(entry, "the same as without it");
  const auto names = as_texts(entry.value);
  if (!names) return refuse(entry, "it must be a name or a list of names");
  for (const std::string& name : *names) {
    if (name == "none") continue;
    if (name == "tensorboard" || name == "all") {
      draft_.set("training.report_to", "tensorboard");
    } else {
      refuse(entry, absl::StrCat(name, " is not written to; use tensorboard or none. /metrics has ",
                                 "the same for Prometheus, `tessera watch --json` for others"));
    }
  }
}

void Translator::resume(const YamlEntry& entry) {
  const auto flag = as_bool(entry.value);
  if (is_nothing(entry.value) || flag == false) return note(entry, "the same as without it");
  if (flag == true) return draft_.set("training.resume_from_checkpoint", "\"true\"");
  refuse(
      entry,
      "a checkpoint of transformers holds other states than Tessera's; to go on from its weights "
      "make it the model_name_or_path");
}

void Translator::ddp_timeout(const YamlEntry& entry) {
  const auto seconds = as_int(entry.value);
  if (!seconds) return refuse(entry, "it must be a whole number of seconds");
  draft_.set("resources.hang_timeout", absl::StrCat(*seconds, "s"),
             {"A rank without progress for so long is taken as hung, and its gang started again."});
}

void Translator::environment(const YamlEntry& entry) {
  // Values may be secrets: only names are told.
  for (const YamlEntry& inner : section_of(entry).entries) {
    draft_.note(absl::StrCat("env.", inner.key), "ranks get no variables of a job's");
  }
}

void Translator::use_cpu(const YamlEntry& entry) { launch_.add(entry); }

void Translator::accelerator(const YamlEntry& entry) {
  constexpr std::array kNoted = {"dispatch_batches", "use_seedable_sampler", "non_blocking",
                                 "use_configured_state"};
  for (const YamlEntry& inner : section_of(entry).entries) {
    const YamlEntry named = within(entry, inner);
    if (inner.key == "split_batches") {
      copy_to(named, "training.accelerator_config.split_batches");
    } else if (std::ranges::find(kNoted, inner.key) != kNoted.end()) {
      note(named, "each rank reads its own rows, drawn from one seed");
    } else if (inner.key == "even_batches" && as_bool(inner.value) == true) {
      note(named, "as it is here");
    } else if (inner.key == "even_batches") {
      refuse(named, "ranks always take as many rows; dataloader_drop_last drops what is left");
    } else if (inner.key == "gradient_accumulation_kwargs" && is_nothing(inner.value)) {
      note(named, "the same as without it");
    } else {
      refuse(named, "there is no counterpart; see gradient_accumulation_steps");
    }
  }
}

void Translator::parallelism(const YamlEntry& entry) { launch_.add_parallelism(section_of(entry)); }

void Translator::fsdp(const YamlEntry& entry) {
  if (is_nothing(entry.value) || as_bool(entry.value) == false) {
    return note(entry, "the same as without it");
  }
  launch_.add(made("use_fsdp", "true", entry));
  if (as_bool(entry.value) == true) return;
  const auto texts = as_texts(entry.value);
  if (!texts) return refuse(entry, "it must be true, or words as in \"full_shard auto_wrap\"");
  for (const std::string& text : *texts) {
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
      if (word == "offload") {
        launch_.add(made("fsdp_offload_params", "true", entry));
      } else if (absl::EndsWith(word, "_shard") || word == "shard_grad_op" ||
                 word == "hybrid_shard_zero2") {
        launch_.add(made("fsdp_sharding_strategy", word, entry));
      } else if (word != "auto_wrap" && !word.empty()) {
        refuse(entry, absl::StrCat(word, " is no word of fsdp"));
      }
    }
  }
}

void Translator::fsdp_config(const YamlEntry& entry) { launch_.add_fsdp(section_of(entry)); }

void Translator::accelerate_preset(const YamlEntry& entry) {
  if (options_.accelerate) return note(entry, "--accelerate is given, and counts");
  const auto preset = std::ranges::find_if(
      kPresets, [&](const Preset& known) { return entry.value.scalar == known.name; });
  if (preset == std::end(kPresets)) {
    return refuse(entry, "it is none of TRL's own; give the file with --accelerate FILE");
  }
  note(entry, "TRL's file of this name");
  for (YamlEntry inner : parse_yaml(preset->text).entries) {
    inner.mark = entry.mark;
    launch_.add(inner);
  }
}

}  // namespace tessera::trl
