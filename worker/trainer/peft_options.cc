#include "worker/trainer/peft_options.h"

#include <algorithm>

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

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

LoraOptions lora_of_job(const v1::Peft& peft) {
  const LoraOptions wanted = options_of(peft);
  if (peft.adapter_path().empty()) return wanted;
  LoraOptions found = read_adapter_config(peft.adapter_path());
  found.dropout = wanted.dropout;
  const LoraOptions usual;
  const auto agree = [&](const char* field, const auto& value, const auto& theirs,
                         const auto& by_default) {
    if (value == theirs || value == by_default) return;
    throw UserError(field, std::string(field) + " is another than in " + peft.adapter_path() + "/" +
                               kAdapterConfig + "; leave it out, or begin a new adapter");
  };
  agree("peft.lora_r", wanted.rank, found.rank, usual.rank);
  agree("peft.lora_alpha", wanted.alpha, found.alpha, usual.alpha);
  agree("peft.use_rslora", wanted.rank_stabilized, found.rank_stabilized, false);
  agree("peft.use_dora", wanted.dora, found.dora, false);
  agree("peft.lora_target_modules", sorted(wanted.target_modules), sorted(found.target_modules),
        usual.target_modules);
  agree("peft.lora_modules_to_save", sorted(wanted.modules_to_save), sorted(found.modules_to_save),
        usual.modules_to_save);
  return found;
}

v1::Peft without_path(v1::Peft peft) {
  const LoraOptions lora = lora_of_job(peft);
  peft.clear_adapter_path();
  peft.set_lora_r(static_cast<int32_t>(lora.rank));
  peft.set_lora_alpha(lora.alpha);
  peft.set_use_rslora(lora.rank_stabilized);
  peft.set_use_dora(lora.dora);
  *peft.mutable_lora_target_modules() = {lora.target_modules.begin(), lora.target_modules.end()};
  *peft.mutable_lora_modules_to_save() = {lora.modules_to_save.begin(), lora.modules_to_save.end()};
  return peft;
}

}  // namespace tessera
