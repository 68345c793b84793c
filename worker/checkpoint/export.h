// Weights as a Hugging Face directory that transformers loads, and saves again as the same bytes;
// or adapters as PEFT loads them.
//
// model*.safetensors are written as the safetensors package does (tensors by name, a header padded
// to 8 bytes, metadata {"format": "pt"}), split and indexed as transformers does. All other files
// are copied byte for byte from where the weights came from; in config.json the dtype alone is
// changed, where it is another, and what makes a model one that scores documents.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "worker/parallel/collectives.h"
#include "worker/parallel/flat_layout.h"

namespace tessera {

// Where transformers 5 begins another file.
inline constexpr int64_t kMaxExportFileBytes = 50'000'000'000;

// See config_of_classifier.
struct ClassifierConfig {
  std::string class_name;
  int64_t pad_token_id = -1;
};

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
  std::optional<ClassifierConfig> classifier = {};  // of a model that scores documents
  // Names under which some parameters are written once more.
  std::map<std::string, std::string> also_as = {};
  // Called on every rank, in order, before the elements of a layout are read; also on a rank that
  // could not write an earlier one. May be collective.
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

}  // namespace tessera
