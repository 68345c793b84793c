#include "client/trl/translate.h"

#include <algorithm>

#include <google/protobuf/descriptor.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/trl/values.h"

namespace tessera::trl {
namespace {

using google::protobuf::FieldDescriptor;
using Kind = YamlNode::Kind;

constexpr char kToken[] = "hub_token";

// A scalar as the field reads it. None: it is no value of the field's type.
std::optional<std::string> scalar_for(const FieldDescriptor& field, const YamlNode& node) {
  if (node.kind != Kind::kScalar) return std::nullopt;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: {
      const auto value = as_bool(node);
      return value ? std::optional<std::string>(*value ? "true" : "false") : std::nullopt;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return yaml_text(node.scalar);
    default: {
      // Numbers may be in quotes: argparse reads texts.
      const std::string number = absl::StrReplaceAll(node.scalar, {{"_", ""}});
      double value = 0;
      return absl::SimpleAtod(number, &value) ? std::optional(number) : std::nullopt;
    }
  }
}

}  // namespace

Translator::Translator(const ImportOptions& options, Method method, JobDraft& draft, Launch& launch)
    : options_(options), method_(method), draft_(draft), launch_(launch) {
  draft_.set(absl::StrCat("method.", method_name(method)), "{}");
}

const std::vector<Translator::Special>& Translator::specials() {
  static const std::vector<Special> table = {
      {"output_dir", &Translator::output_dir},
      {"run_name", &Translator::run_name},
      {"lr_scheduler_kwargs", &Translator::scheduler},
      {"optim", &Translator::optim},
      {"bf16", &Translator::bf16},
      {"activation_checkpointing", &Translator::checkpointing},
      {"gradient_checkpointing", &Translator::checkpointing},
      {"activation_checkpointing_kwargs", &Translator::checkpointing_kwargs},
      {"gradient_checkpointing_kwargs", &Translator::checkpointing_kwargs},
      {"report_to", &Translator::report_to},
      {"resume_from_checkpoint", &Translator::resume},
      {"ddp_timeout", &Translator::ddp_timeout},
      {"env", &Translator::environment},
      {"use_cpu", &Translator::use_cpu},
      {"accelerator_config", &Translator::accelerator},
      {"parallelism_config", &Translator::parallelism},
      {"fsdp", &Translator::fsdp},
      {"fsdp_config", &Translator::fsdp_config},
      {"accelerate_config", &Translator::accelerate_preset},
      {"model_name_or_path", &Translator::model},
      {"dtype", &Translator::dtype},
      {"torch_dtype", &Translator::dtype},
      {"model_init_kwargs", &Translator::model_kwargs},
      {"use_peft", &Translator::peft},
      {"load_in_8bit", &Translator::quantization},
      {"load_in_4bit", &Translator::quantization},
      {"max_length", &Translator::max_length},
      {"max_seq_length", &Translator::max_length},
      {"dataset_kwargs", &Translator::dataset_kwargs},
      {"generation_kwargs", &Translator::generation_kwargs},
      {"ds3_gather_for_generation", &Translator::gather},
      {"scale_rewards", &Translator::scale_rewards},
      {"dataset_name", &Translator::dataset_field},
      {"dataset_config", &Translator::dataset_field},
      {"dataset_train_split", &Translator::dataset_field},
      {"dataset_test_split", &Translator::dataset_field},
      {"datasets", &Translator::datasets},
      {"reward_model_name_or_path", &Translator::reward_model},
      {"reward_funcs", &Translator::reward_funcs},
  };
  return table;
}

std::string Translator::target(const char* path) const {
  return absl::StrReplaceAll(path, {{"%", absl::StrCat("method.", method_name(method_))}});
}

void Translator::refuse(const YamlEntry& entry, const std::string& why) {
  draft_.refuse(entry.mark, absl::StrCat(entry.key, " is ", shown(entry.value), ": ", why));
}

void Translator::note(const YamlEntry& entry, const std::string& why) {
  // A secret stays where it is.
  const std::string value = entry.key == kToken ? "not shown" : shown(entry.value);
  draft_.note(absl::StrCat(entry.key, ": ", value), why);
}

void Translator::copy_to(const YamlEntry& entry, const std::string& path) {
  const FieldDescriptor& field = *job_field(path);
  if (!field.is_repeated()) {
    const auto text = scalar_for(field, entry.value);
    if (!text) return refuse(entry, absl::StrCat("it is no value of ", path));
    return draft_.set(path, *text);
  }
  std::vector<std::string> entries;
  const std::vector<YamlNode> items =
      entry.value.kind == Kind::kList ? entry.value.items : std::vector<YamlNode>{entry.value};
  for (const YamlNode& item : items) {
    const auto text = scalar_for(field, item);
    if (!text) return refuse(entry, absl::StrCat("it is no value of ", path));
    entries.push_back(*text);
  }
  draft_.set(path, yaml_list(entries));
}

// null is None, which is what the absence of these keys is; of the few where it is not, the section
// has no such value.
void Translator::copy(const YamlEntry& entry, const Key& key) {
  if (is_nothing(entry.value) || is_one_of(entry.value, key.neutral)) {
    if (entry.key == "vllm_importance_sampling_clip_max") {
      return refuse(entry, "there must be a bound; a large number is none in effect");
    }
    return note(entry, "the same as without it");
  }
  if (std::string_view(key.target).starts_with("peft.")) {
    of_peft_.push_back(entry);
    return;
  }
  copy_to(entry, target(key.target));
}

YamlEntry Translator::within(const YamlEntry& entry, const YamlEntry& inner) {
  return {absl::StrCat(entry.key, ".", inner.key), inner.mark, inner.value};
}

YamlNode Translator::section_of(const YamlEntry& entry) {
  if (is_nothing(entry.value)) {
    note(entry, "the same as without it");
    return {};
  }
  const auto section = as_section(entry.value);
  if (!section) refuse(entry, "it must be a section, or the JSON of one");
  return section.value_or(YamlNode{});
}

void Translator::take(const YamlEntry& entry) {
  const Key* key = find_key(entry.key, method_);
  if (key == nullptr) {
    // TRL hands what it does not know to accelerate's launcher.
    if (launch_.add(entry)) return;
    const bool elsewhere = find_key(entry.key, kAll) != nullptr;
    draft_.refuse(entry.mark,
                  absl::StrCat(entry.key, " is no key of TRL 1.16's ", method_name(method_),
                               elsewhere ? ", but of other methods" : ""));
    return;
  }
  switch (key->fate) {
    case Fate::kField:
      return copy(entry, *key);
    case Fate::kNoted:
      return note(entry, key->why);
    case Fate::kRefused:
      if (is_nothing(entry.value) || is_one_of(entry.value, key->neutral)) {
        return note(entry, "as it is here");
      }
      return refuse(entry, key->why);
    case Fate::kSpecial:
      break;
  }
  const auto special = std::ranges::find(specials(), entry.key,
                                         [](const Special& s) { return std::string(s.name); });
  (this->*special->handler)(entry);
}

void Translator::translate(const YamlNode& root) {
  if (root.kind != Kind::kMap) {
    draft_.refuse(root.mark, "TRL's file must be a section of keys");
    return;
  }
  std::vector<std::string> seen;
  const auto take_all = [&](bool presets) {
    for (const YamlEntry& entry : root.entries) {
      // A preset comes first: keys of the launcher beside it replace what it says.
      if ((entry.key == "accelerate_config") != presets) continue;
      if (std::ranges::find(seen, entry.key) != seen.end()) {
        draft_.refuse(entry.mark, absl::StrCat(entry.key, " is given twice"));
        continue;
      }
      seen.push_back(entry.key);
      take(entry);
    }
  };
  take_all(true);
  take_all(false);
  if (!draft_.has("training.logging_steps")) {
    draft_.set("training.logging_steps", "10",
               {"TRL's default; eval_steps is the same where it is absent."});
  }
}

void Translator::finish() {
  finish_model();
  finish_data();
  finish_eval();
  if (!options_.device.empty()) {
    draft_.set("resources.device", options_.device);
  } else if (!draft_.has("resources.device")) {
    draft_.set("resources.device", "cuda");
  }
  if (draft_.value("training.output_dir").empty()) {
    const std::string path = (options_.directory / "trainer_output").string();
    draft_.set("training.output_dir", yaml_text(path), {"transformers' default."});
  }
}

}  // namespace tessera::trl
