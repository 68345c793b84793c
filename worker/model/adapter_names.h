// The files of an adapter directory, and the names in them, as PEFT has them.
#pragma once

#include <string>

namespace tessera {

inline constexpr char kAdapterConfig[] = "adapter_config.json";
inline constexpr char kAdapterWeights[] = "adapter_model.safetensors";

// The name of a trained parameter in adapter_model.safetensors.
inline std::string adapter_tensor_name(const std::string& parameter) {
  return "base_model.model." + parameter;
}

}  // namespace tessera
