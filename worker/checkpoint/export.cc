// Weights as a Hugging Face directory. Rank 0 makes the files in their final size; then every rank
// writes the slices that lie in its shards where they belong.
#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/tensor_io.h"
#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTokenizerFiles = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
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
  int64_t weight_bytes = 0;
};

ExportPlan make_plan(const std::vector<FlatLayout>& layouts, at::ScalarType dtype,
                     int64_t max_file_bytes) {
  ExportPlan plan;
  int64_t file_bytes = 0;
  for (const FlatLayout& layout : layouts) {
    for (const FlatEntry& entry : layout.entries) {
      const int64_t bytes = entry.numel * static_cast<int64_t>(c10::elementSize(dtype));
      if (plan.files.empty() || (file_bytes > 0 && file_bytes + bytes > max_file_bytes)) {
        plan.files.emplace_back();
        file_bytes = 0;
      }
      plan.files.back().tensors.emplace_back(entry.name,
                                             TensorInfo{dtype, entry.shape, entry.numel});
      file_bytes += bytes;
      plan.weight_bytes += bytes;
    }
  }
  for (size_t i = 0; i < plan.files.size(); ++i) {
    WeightFile& file = plan.files[i];
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, plan.files.size());
    file.name = plan.files.size() == 1 ? "model.safetensors" : name;
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

void write_slices(const fs::path& directory, const ExportPlan& plan,
                  const std::vector<FlatLayout>& layouts, const std::vector<at::Tensor>& shards,
                  at::ScalarType dtype, int rank) {
  std::map<size_t, OutputFile> files;
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (const FlatLayout::Slice& slice : layouts[i].slices_of_rank(rank)) {
      const ExportPlan::Place place = plan.places.at(slice.entry->name);
      auto file = files.find(place.file);
      if (file == files.end()) {
        file = files.emplace(place.file, OutputFile::open(directory / plan.files[place.file].name))
                   .first;
      }
      write_tensor(file->second, place.offset + slice.entry_begin * element_bytes,
                   shards[i].narrow(0, slice.shard_begin, slice.numel), dtype);
    }
  }
  for (auto& [index, file] : files) file.sync_and_close();
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::system_error(errno, std::generic_category(), path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string config_with_dtype(const fs::path& path, at::ScalarType dtype) {
  const char* name = dtype == at::kFloat      ? "float32"
                     : dtype == at::kBFloat16 ? "bfloat16"
                                              : "float16";
  auto config = nlohmann::ordered_json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    throw UserError("model.path", path.string() + ": it is not a JSON object");
  config.erase("torch_dtype");  // its name before transformers 4.56
  config["dtype"] = name;
  return config.dump(2) + "\n";
}

void copy_if_there(const fs::path& source, const fs::path& directory) {
  std::error_code ignored;
  if (fs::is_regular_file(source, ignored))
    write_durably(directory / source.filename(), read_file(source));
}

std::string index_of(const ExportPlan& plan) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = plan.weight_bytes;
  for (const WeightFile& file : plan.files) {
    for (const auto& [name, info] : file.tensors) index["weight_map"][name] = file.name;
  }
  return index.dump(2) + "\n";
}

}  // namespace

int64_t export_hugging_face(const fs::path& directory, const fs::path& model_source,
                            const fs::path& tokenizer_source,
                            const std::vector<FlatLayout>& layouts,
                            const std::vector<at::Tensor>& shards, at::ScalarType dtype,
                            int64_t max_file_bytes, Collectives& ranks) {
  TORCH_CHECK(layouts.size() == shards.size(), layouts.size(), " layouts, ", shards.size(),
              " shards");
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, "export in ",
              dtype);
  for (size_t i = 0; i < layouts.size(); ++i) {
    TORCH_CHECK(layouts[i].numel == layouts[i].shard_numel * ranks.size() &&
                    shards[i].numel() == layouts[i].shard_numel,
                layouts[i].name, " is not sharded over these ranks");
  }
  const ExportPlan plan = make_plan(layouts, dtype, max_file_bytes);
  const fs::path temporary = temporary_name(directory);
  const std::string what = "cannot write " + directory.string();
  const bool first = ranks.rank() == 0;
  try {
    run_together(ranks, what, [&] {
      if (!first) return;
      fs::create_directories(directory.parent_path());
      fs::remove_all(temporary);
      fs::create_directory(temporary);
      create_files(temporary, plan);
    });
    run_together(ranks, what,
                 [&] { write_slices(temporary, plan, layouts, shards, dtype, ranks.rank()); });
    run_together(ranks, what, [&] {
      if (!first) return;
      if (plan.files.size() > 1)
        write_durably(temporary / "model.safetensors.index.json", index_of(plan));
      write_durably(temporary / "config.json",
                    config_with_dtype(model_source / "config.json", dtype));
      copy_if_there(model_source / "generation_config.json", temporary);
      for (const char* name : kTokenizerFiles) copy_if_there(tokenizer_source / name, temporary);
      publish_directory(directory);
    });
  } catch (...) {
    std::error_code ignored;
    if (first) fs::remove_all(temporary, ignored);
    throw;
  }
  return plan.weight_bytes;
}

}  // namespace tessera
