// Sliding windows as the dense Qwen families describe them.
#pragma once

#include "worker/model/families.h"

namespace tessera {

// Sets config.windows from use_sliding_window, sliding_window, max_window_layers and layer_types.
void read_qwen_windows(const ConfigObject& root, ModelConfig& config);

// sliding_window where use_sliding_window is true, else 0.
int64_t read_qwen_window(const ConfigObject& root);

}  // namespace tessera
