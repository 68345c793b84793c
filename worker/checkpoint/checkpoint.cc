#include "worker/checkpoint/checkpoint.h"

#include <ATen/ops/full.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensor_io.h"
#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kField[] = "training.output_dir";
constexpr char kPrefix[] = "checkpoint-";

// The step in the name of a complete checkpoint.
std::optional<int> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* begin = name.data() + sizeof kPrefix - 1;
  const char* end = name.data() + name.size();
  int step = 0;
  const auto [parsed, error] = std::from_chars(begin, end, step);
  std::error_code ignored;
  if (error != std::errc() || parsed != end || step < 0 ||
      !fs::is_regular_file(path / kCheckpointStateFile, ignored)) {
    return std::nullopt;
  }
  return step;
}

// The complete checkpoints of one job, or of any where `job_id` is null, by step.
std::map<int, fs::path> checkpoints_of(const fs::path& output_dir, const std::string* job_id) {
  std::map<int, fs::path> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(output_dir, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = step_of(entry->path());
    if (!step) continue;
    try {
      const CheckpointReader reader(entry->path(), kField);
      if (job_id == nullptr || reader.state().job_id() == *job_id)
        found.emplace(*step, entry->path());
    } catch (const UserError&) {
      // Not written by us, whosever it is.
    }
  }
  return found;
}

}  // namespace

void delete_leftovers(const fs::path& output_dir) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (auto entry = fs::directory_iterator(output_dir, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_temporary_name(name) && name.starts_with(std::string(".") + kPrefix))
      leftovers.push_back(entry->path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

namespace {

// Takes the oldest away, but never the newest or that of `best_step`. One that cannot be taken away
// now is tried again after the next checkpoint.
void prune(const fs::path& output_dir, const std::string& job_id, int total_limit, int best_step) {
  if (total_limit <= 0) return;
  const std::map<int, fs::path> checkpoints = checkpoints_of(output_dir, &job_id);
  size_t left = checkpoints.size();
  for (const auto& [step, path] : checkpoints) {
    if (left <= static_cast<size_t>(total_limit)) return;
    if (step == best_step || step == checkpoints.rbegin()->first) continue;
    try {
      retire_directory(path);
    } catch (const fs::filesystem_error&) {
    }
    --left;
  }
}

int64_t write_shards(const fs::path& path, const std::vector<FlatShard>& shards) {
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (const FlatShard& shard : shards) {
    TORCH_CHECK(shard.data.dim() == 1 && shard.data.is_contiguous(), shard.name, " is not flat");
    tensors.emplace_back(
        shard.name, TensorInfo{shard.data.scalar_type(), {shard.data.numel()}, shard.data.numel()});
  }
  const SafetensorsLayout layout = lay_out_safetensors(tensors);
  OutputFile file = OutputFile::create(path, layout.file_bytes);
  file.write(layout.prefix.data(), static_cast<int64_t>(layout.prefix.size()), 0);
  for (size_t i = 0; i < shards.size(); ++i) {
    write_tensor(file, layout.offsets[i], shards[i].data, shards[i].data.scalar_type());
  }
  file.sync_and_close();
  return layout.file_bytes;
}

std::string to_json(const v1::CheckpointState& state) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  const auto status = google::protobuf::util::MessageToJsonString(state, &json, options);
  TORCH_CHECK(status.ok(), status.ToString());
  return json;
}

std::optional<FoundCheckpoint> newest(const std::map<int, fs::path>& checkpoints) {
  if (checkpoints.empty()) return std::nullopt;
  return FoundCheckpoint{checkpoints.rbegin()->first, checkpoints.rbegin()->second};
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, int step) {
  return output_dir / (kPrefix + std::to_string(step));
}

SavedCheckpoint save_checkpoint(const fs::path& output_dir, const v1::CheckpointState& state,
                                const std::vector<FlatShard>& shards, int total_limit,
                                Collectives& ranks) {
  const fs::path directory = checkpoint_path(output_dir, state.step());
  const fs::path temporary = temporary_name(directory);
  const std::string what = "cannot write " + directory.string();
  const bool first = ranks.rank() == 0;
  int64_t bytes = 0;
  try {
    run_together(ranks, what, [&] {
      if (!first) return;
      fs::create_directories(output_dir);
      delete_leftovers(output_dir);
      fs::create_directory(temporary);
    });
    run_together(ranks, what, [&] {
      bytes = write_shards(temporary / checkpoint_rank_file(ranks.rank()), shards);
    });
    run_together(ranks, what, [&] {
      if (!first) return;
      v1::CheckpointState complete = state;
      complete.set_world_size(ranks.size());
      complete.clear_vectors();
      for (const FlatShard& shard : shards) (*complete.mutable_vectors())[shard.name] = shard.numel;
      const std::string json = to_json(complete);
      write_durably(temporary / kCheckpointStateFile, json);
      bytes += static_cast<int64_t>(json.size());
      publish_directory(directory);
      prune(output_dir, state.job_id(), total_limit, state.best().checkpoint_step());
    });
  } catch (...) {
    std::error_code ignored;
    if (first) fs::remove_all(temporary, ignored);
    throw;
  }
  at::Tensor total = at::full({1}, bytes, at::kLong);
  ranks.all_reduce_sum(total);
  return {directory, *total.const_data_ptr<int64_t>()};
}

std::optional<FoundCheckpoint> find_latest_checkpoint(const fs::path& output_dir,
                                                      const std::string& job_id) {
  return newest(checkpoints_of(output_dir, &job_id));
}

FoundCheckpoint find_checkpoint(const fs::path& path, const std::string& field) {
  std::error_code ignored;
  if (fs::is_regular_file(path / kCheckpointStateFile, ignored)) {
    return {CheckpointReader(path, field).state().step(), path};
  }
  const auto found = newest(checkpoints_of(path, nullptr));
  if (!found) {
    throw UserError(field, field + ": " + path.string() +
                               " neither is nor holds a checkpoint that is complete");
  }
  return *found;
}

}  // namespace tessera
