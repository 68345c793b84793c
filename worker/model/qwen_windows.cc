// Source: transformers/models/qwen2/configuration_qwen2.py.
#include "worker/model/qwen_windows.h"

namespace tessera {
namespace {

constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultWindowLayers = 28;
constexpr int64_t kMaxLayers = int64_t{1} << 24;

}  // namespace

int64_t read_qwen_window(const ConfigObject& root) {
  const bool given = root.mentions("sliding_window");
  const int64_t window = root.dimension_or("sliding_window", given ? 0 : kDefaultWindow);
  return root.flag("use_sliding_window", false) ? window : 0;
}

void read_qwen_windows(const ConfigObject& root, ModelConfig& config) {
  const int64_t window = read_qwen_window(root);
  const int64_t first =
      root.integer_or("max_window_layers", kDefaultWindowLayers, -kMaxLayers, kMaxLayers);
  config.windows.assign(config.num_layers, 0);
  if (!root.has("layer_types")) {
    for (int64_t i = 0; i < config.num_layers; ++i) config.windows[i] = i >= first ? window : 0;
    return;
  }
  const std::vector<std::string> types = root.texts("layer_types");
  if (static_cast<int64_t>(types.size()) != config.num_layers) {
    root.fail_value("layer_types", "must name num_hidden_layers = " +
                                       std::to_string(config.num_layers) + " layers");
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] != "sliding_attention") {
      root.fail_value("layer_types", "must hold only full_attention and sliding_attention");
    }
    if (window == 0) {
      root.fail_value("layer_types",
                      "sliding_attention needs use_sliding_window true and a sliding_window");
    }
    config.windows[i] = window;
  }
}

}  // namespace tessera
