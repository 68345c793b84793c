// The decoder families, one row each (families.cc); what is special to one stands in its own file.
#pragma once

#include <string>
#include <string_view>

#include "worker/model/config.h"

namespace tessera {

struct ModelFamily {
  std::string_view model_type;          // as in config.json
  void (*adjust)(ModelConfig& config);  // sets what config.json leaves to the family
};

// Null when there is none of that type.
const ModelFamily* find_model_family(std::string_view model_type);
// For error messages: "llama, qwen3".
std::string model_family_names();

void adjust_llama(ModelConfig& config);
void adjust_qwen3(ModelConfig& config);

}  // namespace tessera
