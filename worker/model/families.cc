#include "worker/model/families.h"

namespace tessera {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"llama", "Llama", read_llama},
    {"mistral", "Mistral", read_mistral},
    {"qwen2", "Qwen2", read_qwen2},
    {"qwen3", "Qwen3", read_qwen3},
    {"qwen3_moe", "Qwen3Moe", read_qwen3_moe},
    {"mixtral", "Mixtral", read_mixtral},
};

}  // namespace

const ModelFamily* find_model_family(std::string_view model_type) {
  for (const ModelFamily& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

std::string model_family_names() {
  std::string names;
  for (const ModelFamily& family : kFamilies) {
    if (!names.empty()) names += ", ";
    names += family.model_type;
  }
  return names;
}

}  // namespace tessera
