#include "worker/trainer/peft_options.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "proto/spec/rules.h"
#include "worker/errors.h"
#include "worker/model/adapter_files.h"

namespace tessera {
namespace {

LoraOptions options_of(const v1::Peft& peft) {
  LoraOptions options;
  options.rank = peft.lora_r();
  options.alpha = peft.lora_alpha();
  options.dropout = peft.lora_dropout();
  options.target_modules = {peft.lora_target_modules().begin(), peft.lora_target_modules().end()};
  options.modules_to_save = {peft.lora_modules_to_save().begin(),
                             peft.lora_modules_to_save().end()};
  options.rank_stabilized = peft.use_rslora();
  options.dora = peft.use_dora();
  return options;
}

LoraOptions usual_options() {
  v1::JobSpec spec;
  spec.mutable_peft();
  spec::fill_defaults(spec);
  return options_of(spec.peft());
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return c10::str(value); }
std::string text_of(const std::vector<std::string>& names) {
  return "[" + c10::Join(", ", names) + "]";
}

}  // namespace

LoraOptions lora_of_job(const v1::Peft& peft) {
  const LoraOptions wanted = options_of(peft);
  if (peft.adapter_path().empty()) return wanted;
  LoraOptions found = read_adapter_config(peft.adapter_path());
  found.dropout = wanted.dropout;
  const LoraOptions usual = usual_options();
  const auto agree = [&](const char* field, const auto& value, const auto& theirs,
                         const auto& by_default) {
    if (value == theirs || value == by_default) return;
    throw UserError(field, std::string(field) + " is " + text_of(value) + ", must be " +
                               text_of(theirs) + " as in " + peft.adapter_path() + "/" +
                               kAdapterConfig + ", or be left out");
  };
  agree("peft.lora_r", wanted.rank, found.rank, usual.rank);
  agree("peft.lora_alpha", wanted.alpha, found.alpha, usual.alpha);
  agree("peft.use_rslora", wanted.rank_stabilized, found.rank_stabilized, usual.rank_stabilized);
  agree("peft.use_dora", wanted.dora, found.dora, usual.dora);
  agree("peft.lora_target_modules", sorted(wanted.target_modules), sorted(found.target_modules),
        usual.target_modules);
  agree("peft.lora_modules_to_save", sorted(wanted.modules_to_save), sorted(found.modules_to_save),
        usual.modules_to_save);
  return found;
}

AdapterOfJob adapter_of_job(const v1::Peft& peft) {
  AdapterOfJob adapter{lora_of_job(peft), peft};
  const LoraOptions& lora = adapter.lora;
  v1::Peft& named = adapter.peft;
  named.clear_adapter_path();
  named.set_lora_r(static_cast<int32_t>(lora.rank));
  named.set_lora_alpha(lora.alpha);
  named.set_use_rslora(lora.rank_stabilized);
  named.set_use_dora(lora.dora);
  *named.mutable_lora_target_modules() = {lora.target_modules.begin(), lora.target_modules.end()};
  *named.mutable_lora_modules_to_save() = {lora.modules_to_save.begin(),
                                           lora.modules_to_save.end()};
  return adapter;
}

void write_as_adapter(DecoderModel& model, const LoraOptions& lora,
                      const std::filesystem::path& model_path, ExportOptions& options) {
  options.adapter_config = adapter_config_text(model, lora, model_path);
  if (trains_tied_matrix(model)) options.also_as = kTiedNames;
}

}  // namespace tessera
