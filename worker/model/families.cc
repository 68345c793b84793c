#include "worker/model/families.h"

namespace tessera {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"llama", adjust_llama},
    {"qwen3", adjust_qwen3},
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
