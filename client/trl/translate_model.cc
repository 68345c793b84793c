// Keys of the model, its adapters and its methods that are more than one field.
#include <array>

#include "absl/strings/str_cat.h"
#include "client/trl/datasets.h"
#include "client/trl/translate.h"
#include "client/trl/values.h"

namespace tessera::trl {
namespace {

using Kind = YamlNode::Kind;

}  // namespace

void Translator::model(const YamlEntry& entry) {
  model_mark_ = entry.mark;
  model_ = entry.value.scalar;
}

void Translator::dtype(const YamlEntry& entry) {
  if (is_one_of(entry.value, "float16|half|torch.float16")) {
    return refuse(entry, "float16 is not built; use bfloat16");
  }
  if (!is_nothing(entry.value) && !is_one_of(entry.value, "auto|bfloat16|float32")) {
    return refuse(entry, "it must be float32, bfloat16 or auto");
  }
  dtype_ = entry.value.scalar;
}

void Translator::model_kwargs(const YamlEntry& entry) {
  constexpr std::array kNoted = {"attn_implementation", "use_cache",         "use_kernels",
                                 "device_map",          "low_cpu_mem_usage", "use_safetensors"};
  for (const YamlEntry& inner : section_of(entry).entries) {
    const YamlEntry named = within(entry, inner);
    if (inner.key == "dtype" || inner.key == "torch_dtype") {
      dtype(named);
    } else if (std::ranges::find(kNoted, inner.key) != kNoted.end()) {
      note(named, "models are run by Tessera's own code");
    } else if (is_nothing(inner.value) ||
               (inner.key == "trust_remote_code" && as_bool(inner.value) == false) ||
               (inner.key == "revision" && is_one_of(inner.value, "main"))) {
      note(named, "as it is here");
    } else {
      refuse(named, "a model is as its directory has it; change its config.json");
    }
  }
}

void Translator::peft(const YamlEntry& entry) {
  const auto value = as_bool(entry.value);
  if (!value) return refuse(entry, "it must be true or false");
  has_peft_ = *value;
  if (has_peft_) draft_.set("peft", "{}");
  if (!has_peft_) note(entry, "the same as without it");
}

void Translator::quantization(const YamlEntry& entry) {
  if (is_nothing(entry.value) || as_bool(entry.value) == false) {
    return note(entry, "the same as without it");
  }
  of_peft_.push_back(entry);
}

void Translator::max_length(const YamlEntry& entry) {
  const std::string path = target("%.max_length");
  if (is_nothing(entry.value)) return draft_.set(path, "0", {"TRL's null: no truncation."});
  copy_to(entry, path);
}

void Translator::dataset_kwargs(const YamlEntry& entry) {
  for (const YamlEntry& inner : section_of(entry).entries) {
    const YamlEntry named = within(entry, inner);
    if (inner.key == "skip_prepare_dataset") {
      note(named, "records of input_ids are taken as they are, others are tokenised");
    } else {
      refuse(named, "documents are read as docs/data.md says, without choices");
    }
  }
}

void Translator::generation_kwargs(const YamlEntry& entry) {
  constexpr std::array kOfMethod = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"};
  for (const YamlEntry& inner : section_of(entry).entries) {
    const YamlEntry named = within(entry, inner);
    if (std::ranges::find(kOfMethod, inner.key) != kOfMethod.end()) {
      copy_to(named, target(absl::StrCat("%.", inner.key).c_str()));
    } else if (inner.key == "stop" || inner.key == "stop_strings") {
      copy_to(named, "generation.stop_strings");
    } else {
      refuse(named, "completions are drawn as the method's fields say");
    }
  }
}

void Translator::gather(const YamlEntry& entry) {
  if (as_bool(entry.value) == false) {
    return draft_.set("generation.weights", "layerwise",
                      {"ds3_gather_for_generation: false: weights stay sharded."});
  }
  note(entry, "generation.weights gathers where that fits");
}

void Translator::scale_rewards(const YamlEntry& entry) {
  const auto flag = as_bool(entry.value);
  if (flag) return draft_.set(target("%.scale_rewards"), *flag ? "group" : "none");
  copy_to(entry, target("%.scale_rewards"));
}

void Translator::finish_model() {
  if (!options_.model.empty()) {
    draft_.set("model.path", yaml_text(local_path(options_.model, options_.directory).string()),
               {absl::StrCat("In place of ", model_.empty() ? "none" : model_, ".")});
  } else if (model_.empty()) {
    draft_.refuse({}, "model_name_or_path is missing; give --model DIRECTORY");
  } else if (is_local(model_, options_.directory) && !model_.starts_with('~')) {
    draft_.set("model.path", yaml_text(local_path(model_, options_.directory).string()));
  } else {
    draft_.refuse(model_mark_, absl::StrCat("model_name_or_path is ", model_,
                                            ", no directory here: nothing is downloaded. `hf "
                                            "download ",
                                            model_, " --local-dir DIR`, and give --model DIR"));
  }
  for (const YamlEntry& entry : of_peft_) {
    if (!has_peft_ && entry.key.starts_with("load_in_")) {
      refuse(entry, "weights that are trained are not quantized; use use_peft: true");
    } else if (!has_peft_) {
      note(entry, "without effect unless use_peft");
    } else if (entry.key == "load_in_4bit") {
      draft_.set("peft.quantization", "nf4");
    } else if (entry.key == "load_in_8bit") {
      draft_.set("peft.quantization", "int8");
    } else {
      copy_to(entry, absl::StrCat("peft.", entry.key));
    }
  }
  const std::string precision = launch_.mixed_precision();
  if (bf16_.value_or(true) || precision == "bf16") {
    std::vector<std::string> why;
    if (!bf16_) why = {"TRL computes in bfloat16 unless bf16 is false."};
    if (!precision.empty() && precision != "bf16") {
      draft_.note(absl::StrCat("mixed_precision: ", precision), "bf16 of TRL's file counts");
    }
    if (dtype_ == "bfloat16") why.push_back("Weights that are trained are float32 nevertheless.");
    return draft_.set("model.dtype", "bfloat16", why);
  }
  if (precision == "fp16") {
    return draft_.refuse({}, "mixed_precision is fp16: float16 is not built; use bf16");
  }
  if (dtype_ == "auto") {
    return draft_.refuse({}, "dtype is auto with bf16: false: say float32 or bfloat16");
  }
  draft_.set("model.dtype", dtype_ == "bfloat16" ? "bfloat16" : "float32");
}

}  // namespace tessera::trl
