// Weights as a Hugging Face directory that transformers loads, and saves again as the same bytes;
// or adapters as PEFT loads them.
//
// model*.safetensors are written as the safetensors package does (tensors by name, a header padded
// to 8 bytes, metadata {"format": "pt"}), split and indexed as transformers does. All other files
// are copied byte for byte from where the weights came from; in config.json the dtype alone is
// changed, where it is another.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/parallel/collectives.h"
#include "worker/parallel/flat_layout.h"

namespace tessera {

// Where transformers 5 begins another file.
inline constexpr int64_t kMaxExportFileBytes = 50'000'000'000;

struct ExportOptions {
  std::filesystem::path directory;
  std::filesystem::path model_source;      // config.json, generation_config.json
  std::filesystem::path tokenizer_source;  // the tokenizer's files, chat templates
  std::string chat_template;               // in place of the tokenizer's; empty: none is
  at::ScalarType dtype = at::kFloat;       // that weights are stored in
  int64_t max_file_bytes = kMaxExportFileBytes;
  // Not empty: an adapter directory is written, with this as its adapter_config.json, the weights
  // in adapter_model.safetensors under the names that PEFT has for them, and the tokenizer.
  std::string adapter_config;
  // Names under which some parameters are written once more.
  std::map<std::string, std::string> also_as = {};
  // Called on every rank, in order, before the elements of a layout are read.
  std::function<void(size_t layout)> before_layout = [](size_t) {};
};

// Elements [begin, begin + numel) of this rank's shard of the layout number `layout`: float32, 1-D.
// The tensor is used before the next call.
using ShardReader = std::function<at::Tensor(size_t layout, int64_t begin, int64_t numel)>;

// Collective. Each rank writes its own slices, in pieces of 4 MiB; no rank ever holds more than its
// shards. Written under a temporary name and renamed. Returns the bytes of weights written. Throws
// UserError (config.json is no JSON object), std::system_error.
int64_t export_hugging_face(const ExportOptions& options, const std::vector<FlatLayout>& layouts,
                            const ShardReader& shards, Collectives& ranks);

// The text of a config.json with its dtype ("float32", "bfloat16", "float16") set, all other bytes
// as they are. Under the name it has there: dtype, or torch_dtype as before transformers 4.56.
// Returns an empty string when the text is not a JSON object.
std::string config_with_dtype(const std::string& config, const std::string& dtype);

}  // namespace tessera
