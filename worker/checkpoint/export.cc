// Rank 0 makes the files in their final size; then every rank writes the slices that lie in its
// shards where they belong.
#include "worker/checkpoint/export.h"

#include <algorithm>
#include <array>
#include <exception>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "worker/checkpoint/config_json.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/tensor_io.h"
#include "worker/errors.h"
#include "worker/model/adapter_names.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceElements = 1 << 20;
constexpr char kChatTemplates[] = "additional_chat_templates";
constexpr std::array kTokenizerFiles = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "vocab.txt",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "spiece.model",
                                        "sentencepiece.bpe.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};

struct WeightFile {
  std::string name;
  SafetensorsLayout layout;
  std::vector<std::pair<std::string, TensorInfo>> tensors;
};

// Where each entry's data begins. All ranks compute the same.
struct ExportPlan {
  struct Place {
    size_t file;
    int64_t offset;
  };
  std::vector<WeightFile> files;
  std::map<std::string, Place> places;
  int64_t num_elements = 0;
  int64_t weight_bytes = 0;
};

std::vector<std::string> stored_names(const FlatEntry& entry, const ExportOptions& options) {
  std::vector<std::string> names{entry.name};
  const auto also = options.also_as.find(entry.name);
  if (also != options.also_as.end()) names.push_back(also->second);
  if (options.adapter_config.empty()) return names;
  for (std::string& name : names) name = adapter_tensor_name(name);
  return names;
}

// A tensor larger than a file may be gets a file of its own, and the files around it go on.
void deal_to_files(const std::vector<FlatLayout>& layouts, const ExportOptions& options,
                   ExportPlan& plan) {
  // PEFT reads adapters from one file.
  const int64_t max_bytes =
      options.adapter_config.empty() ? options.max_file_bytes : std::numeric_limits<int64_t>::max();
  WeightFile current;
  int64_t file_bytes = 0;
  const auto deal = [&](const std::string& name, const TensorInfo& info) {
    const int64_t bytes = info.numel * static_cast<int64_t>(c10::elementSize(options.dtype));
    plan.num_elements += info.numel;
    plan.weight_bytes += bytes;
    if (bytes > max_bytes) {
      plan.files.emplace_back().tensors = {{name, info}};
      return;
    }
    if (file_bytes + bytes > max_bytes) {
      plan.files.push_back(std::exchange(current, {}));
      file_bytes = 0;
    }
    current.tensors.emplace_back(name, info);
    file_bytes += bytes;
  };
  for (const FlatLayout& layout : layouts) {
    for (const FlatEntry& entry : layout.entries) {
      for (const std::string& name : stored_names(entry, options))
        deal(name, {options.dtype, entry.shape, entry.numel});
    }
  }
  if (!current.tensors.empty()) plan.files.push_back(std::move(current));
}

ExportPlan make_plan(const std::vector<FlatLayout>& layouts, const ExportOptions& options) {
  ExportPlan plan;
  deal_to_files(layouts, options, plan);
  for (size_t i = 0; i < plan.files.size(); ++i) {
    WeightFile& file = plan.files[i];
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, plan.files.size());
    file.name = plan.files.size() == 1 ? "model.safetensors" : name;
    if (!options.adapter_config.empty()) file.name = kAdapterWeights;
    std::sort(file.tensors.begin(), file.tensors.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    file.layout = lay_out_safetensors(file.tensors);
    for (size_t j = 0; j < file.tensors.size(); ++j) {
      plan.places[file.tensors[j].first] = {i, file.layout.offsets[j]};
    }
  }
  return plan;
}

void create_files(const fs::path& directory, const ExportPlan& plan) {
  for (const WeightFile& weights : plan.files) {
    OutputFile file = OutputFile::create(directory / weights.name, weights.layout.file_bytes);
    file.write(weights.layout.prefix.data(), static_cast<int64_t>(weights.layout.prefix.size()), 0);
    file.sync_and_close();
  }
}

// The part of a layout that lies in this rank's shard, into each of its places.
class SliceWriter {
 public:
  SliceWriter(const fs::path& directory, const ExportPlan& plan, const ExportOptions& options)
      : directory_(directory), plan_(plan), options_(options) {}

  void write(const FlatLayout::Slice& slice, int64_t done, const at::Tensor& values) {
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(options_.dtype));
    for (const std::string& name : stored_names(*slice.entry, options_)) {
      const ExportPlan::Place place = plan_.places.at(name);
      write_tensor(file(place.file), place.offset + (slice.entry_begin + done) * element_bytes,
                   values, options_.dtype);
    }
  }
  void sync_and_close() {
    for (auto& [index, file] : files_) file.sync_and_close();
  }

 private:
  OutputFile& file(size_t index) {
    auto found = files_.find(index);
    if (found == files_.end()) {
      const fs::path path = directory_ / plan_.files[index].name;
      found = files_.emplace(index, OutputFile::open(path)).first;
    }
    return found->second;
  }

  const fs::path& directory_;
  const ExportPlan& plan_;
  const ExportOptions& options_;
  std::map<size_t, OutputFile> files_;
};

// Keeps the first error, and does nothing after it.
class UntilError {
 public:
  template <typename Body>
  void run(const Body& body) {
    if (error_) return;
    try {
      body();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

// Collective. before_layout() may be so, too: a rank that fails goes on calling it, or the others
// would wait there for ever.
void write_slices(const fs::path& directory, const ExportPlan& plan,
                  const std::vector<FlatLayout>& layouts, const ShardReader& shards,
                  const ExportOptions& options, const std::string& what, Collectives& ranks) {
  SliceWriter writer(directory, plan, options);
  UntilError writing;
  for (size_t i = 0; i < layouts.size(); ++i) {
    options.before_layout(i);
    writing.run([&] {
      for (const FlatLayout::Slice& slice : layouts[i].slices_of_rank(ranks.rank())) {
        for (int64_t done = 0; done < slice.numel; done += kPieceElements) {
          const int64_t numel = std::min(kPieceElements, slice.numel - done);
          writer.write(slice, done, shards(i, slice.shard_begin + done, numel));
        }
      }
    });
  }
  writing.run([&] { writer.sync_and_close(); });
  run_together(ranks, what, [&] { writing.rethrow(); });
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::system_error(errno, std::generic_category(), path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string config_text(const fs::path& path, const ExportOptions& options) {
  const char* name = options.dtype == at::kFloat      ? "float32"
                     : options.dtype == at::kBFloat16 ? "bfloat16"
                                                      : "float16";
  std::string config = config_with_dtype(read_file(path), name);
  if (options.classifier) {
    config = config_of_classifier(config, options.classifier->class_name,
                                  options.classifier->pad_token_id);
  }
  if (config.empty()) throw UserError("model.path", path.string() + ": it is not a JSON object");
  return config;
}

void copy_if_there(const fs::path& source, const fs::path& directory) {
  std::error_code ignored;
  if (fs::is_regular_file(source, ignored))
    write_durably(directory / source.filename(), read_file(source));
}

std::string index_of(const ExportPlan& plan) {
  nlohmann::json index;  // sorts keys, as transformers does
  index["metadata"] = {{"total_parameters", plan.num_elements}, {"total_size", plan.weight_bytes}};
  for (const WeightFile& file : plan.files) {
    for (const auto& [name, info] : file.tensors) index["weight_map"][name] = file.name;
  }
  return index.dump(2) + "\n";
}

void write_configs(const fs::path& directory, const ExportPlan& plan,
                   const ExportOptions& options) {
  if (!options.adapter_config.empty())
    return write_durably(directory / kAdapterConfig, options.adapter_config);
  if (plan.files.size() > 1)
    write_durably(directory / "model.safetensors.index.json", index_of(plan));
  write_durably(directory / "config.json",
                config_text(options.model_source / "config.json", options));
  // transformers writes none for a model that does not generate.
  if (!options.classifier)
    copy_if_there(options.model_source / "generation_config.json", directory);
}

void copy_tokenizer(const fs::path& source, const fs::path& directory) {
  for (const char* name : kTokenizerFiles) copy_if_there(source / name, directory);
  std::error_code ignored;
  if (!fs::is_directory(source / kChatTemplates, ignored)) return;
  fs::create_directory(directory / kChatTemplates);
  for (const auto& file : fs::directory_iterator(source / kChatTemplates)) {
    if (file.path().extension() == ".jinja") copy_if_there(file, directory / kChatTemplates);
  }
  sync_directory(directory / kChatTemplates);
}

void set_chat_template(const std::string& text, const fs::path& directory) {
  fs::remove_all(directory / kChatTemplates);
  fs::remove(directory / "chat_template.jinja");
  write_durably(directory / "chat_template.jinja", text);
}

void check_arguments(const ExportOptions& options, const std::vector<FlatLayout>& layouts,
                     int world_size) {
  TORCH_CHECK(
      options.dtype == at::kFloat || options.dtype == at::kBFloat16 || options.dtype == at::kHalf,
      "export in ", options.dtype);
  for (const FlatLayout& layout : layouts) {
    TORCH_CHECK(layout.numel == layout.shard_numel * world_size, layout.name,
                " is not sharded over these ranks");
  }
}

}  // namespace

int64_t export_hugging_face(const ExportOptions& options, const std::vector<FlatLayout>& layouts,
                            const ShardReader& shards, Collectives& ranks) {
  check_arguments(options, layouts, ranks.size());
  const ExportPlan plan = make_plan(layouts, options);
  const fs::path temporary = temporary_name(options.directory);
  const std::string what = "cannot write " + options.directory.string();
  const bool first = ranks.rank() == 0;
  try {
    run_together(ranks, what, [&] {
      if (!first) return;
      fs::create_directories(options.directory.parent_path());
      fs::remove_all(temporary);
      fs::create_directory(temporary);
      create_files(temporary, plan);
    });
    write_slices(temporary, plan, layouts, shards, options, what, ranks);
    run_together(ranks, what, [&] {
      if (!first) return;
      write_configs(temporary, plan, options);
      copy_tokenizer(options.tokenizer_source, temporary);
      if (!options.chat_template.empty()) set_chat_template(options.chat_template, temporary);
      publish_directory(options.directory);
    });
  } catch (...) {
    std::error_code ignored;
    if (first) fs::remove_all(temporary, ignored);
    throw;
  }
  return plan.weight_bytes;
}

}  // namespace tessera
