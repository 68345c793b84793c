// A small sharded state with a value for every element, in a directory of its own.
#pragma once

#include <ATen/ops/zeros.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/writer.h"
#include "worker/parallel/flat_layout.h"

namespace tessera::testing {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::vector<FlatLayout> example_layouts(int world_size) {
  return {
      make_flat_layout("embed", {{"model.embed_tokens.weight", {50, 24}}}, world_size),
      make_flat_layout(
          "block", {{"model.layers.0.norm.weight", {24}}, {"model.layers.0.q.weight", {31, 24}}},
          world_size),
      make_flat_layout("tail", {{"model.norm.weight", {3}}}, world_size)};
}

// Differs in every element, vector and generation; exact in float32.
inline float element(int vector, int64_t index, int generation) {
  return static_cast<float>(vector * 100'000 + index) + 0.25f * static_cast<float>(generation);
}

// This rank's shards of the flat vectors, used part filled and padding zero.
inline std::vector<FlatShard> example_shards(int rank, int world_size, int generation) {
  std::vector<FlatShard> shards;
  for (const FlatLayout& layout : example_layouts(world_size)) {
    at::Tensor data = at::zeros({layout.shard_numel});
    for (int64_t i = 0; i < layout.shard_numel; ++i) {
      const int64_t index = rank * layout.shard_numel + i;
      if (index < layout.used_numel) {
        data.data_ptr<float>()[i] = element(static_cast<int>(shards.size()), index, generation);
      }
    }
    shards.push_back({layout.name + "/parameter", data, layout.used_numel});
  }
  return shards;
}

inline constexpr char kJob[] = "job-1";

inline v1::CheckpointState state_at(int step, const std::string& job_id = kJob) {
  v1::CheckpointState state;
  state.set_job_id(job_id);
  state.set_step(step);
  state.set_epoch(2);
  state.set_row(int64_t{1} << 40);
  state.set_seed(42);
  return state;
}

// Saves with a writer that is there for nothing else.
inline void save_checkpoint(const std::filesystem::path& directory,
                            const v1::CheckpointState& state, const std::vector<FlatShard>& shards,
                            int total_limit, Collectives& ranks) {
  CheckpointWriter writer({.output_dir = directory, .total_limit = total_limit}, ranks);
  writer.begin(state, shards);
  writer.finish();
}

// Fills rank 0's shards, or those of `rank`.
inline v1::CheckpointState load(const std::filesystem::path& checkpoint,
                                const std::vector<FlatShard>& shards, int rank = 0) {
  CheckpointReader reader(checkpoint, "training.output_dir");
  reader.load(shards, rank);
  return reader.state();
}

inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace tessera::testing
