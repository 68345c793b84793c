#include "worker/checkpoint/checkpoint.h"

#include <ATen/ops/full.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>

#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/tensor_io.h"
#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr char kField[] = "training.output_dir";
constexpr char kPrefix[] = "checkpoint-";
constexpr char kStateFile[] = "state.json";
constexpr uintmax_t kMaxStateBytes = 64 << 20;
constexpr int kMaxWorldSize = 99'999;

std::string rank_file(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.safetensors", rank);
  return name;
}

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
      !fs::is_regular_file(path / kStateFile, ignored)) {
    return std::nullopt;
  }
  return step;
}

v1::CheckpointState read_state(const fs::path& path) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) throw UserError(kField, path.string() + ": " + error.message());
  if (bytes > kMaxStateBytes) throw UserError(kField, path.string() + ": it is too large");
  std::ifstream file(path, std::ios::binary);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  v1::CheckpointState state;
  if (!google::protobuf::util::JsonStringToMessage(json, &state).ok() || state.world_size() < 1 ||
      state.world_size() > kMaxWorldSize) {
    throw UserError(kField, path.string() + ": it is not the state of a checkpoint");
  }
  return state;
}

// The complete checkpoints of one job, by step.
std::map<int, fs::path> checkpoints_of(const fs::path& output_dir, const std::string& job_id) {
  std::map<int, fs::path> found;
  std::error_code error;
  for (auto entry = fs::directory_iterator(output_dir, error);
       !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = step_of(entry->path());
    if (!step) continue;
    try {
      if (read_state(entry->path() / kStateFile).job_id() == job_id)
        found.emplace(*step, entry->path());
    } catch (const UserError&) {
      // Not written by us, whosever it is.
    }
  }
  return found;
}

// What a crash left; it is nobody's.
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

// A checkpoint that cannot be taken away now is tried again after the next one.
void prune(const fs::path& output_dir, const std::string& job_id, int total_limit) {
  std::map<int, fs::path> checkpoints = checkpoints_of(output_dir, job_id);
  while (total_limit > 0 && checkpoints.size() > static_cast<size_t>(total_limit)) {
    try {
      retire_directory(checkpoints.begin()->second);
    } catch (const fs::filesystem_error&) {
    }
    checkpoints.erase(checkpoints.begin());
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

// The rank files of a checkpoint, opened when first needed.
class SavedShards {
 public:
  SavedShards(fs::path directory, int world_size)
      : directory_(std::move(directory)), world_size_(world_size) {}

  // Elements [begin, begin + out.numel()) of the flat vector `name`.
  void read(const std::string& name, int64_t begin, at::Tensor out) {
    const int64_t shard_numel = shard_of(0, name).numel;
    if (begin + out.numel() > shard_numel * world_size_) fail(name);
    for (int64_t done = 0; done < out.numel();) {
      const int rank = static_cast<int>((begin + done) / shard_numel);
      const int64_t offset = (begin + done) % shard_numel;
      const int64_t numel = std::min(shard_numel - offset, out.numel() - done);
      if (shard_of(rank, name).numel != shard_numel) fail(name);
      read_tensor(file_of(rank), name, offset, out.narrow(0, done, numel));
      done += numel;
    }
  }

 private:
  const SafetensorsFile& file_of(int rank) {
    auto found = files_.find(rank);
    if (found == files_.end()) {
      found =
          files_.emplace(rank, SafetensorsFile::open(directory_ / rank_file(rank), kField)).first;
    }
    return found->second;
  }

  const TensorInfo& shard_of(int rank, const std::string& name) {
    const auto& tensors = file_of(rank).tensors();
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail(name);
    return found->second;
  }

  [[noreturn]] void fail(const std::string& name) const {
    throw UserError(kField,
                    directory_.string() + ": the shards of " + name + " do not fit together");
  }

  const fs::path directory_;
  const int world_size_;
  std::map<int, SafetensorsFile> files_;
};

}  // namespace

SavedCheckpoint save_checkpoint(const fs::path& output_dir, const v1::CheckpointState& state,
                                const std::vector<FlatShard>& shards, int total_limit,
                                Collectives& ranks) {
  const fs::path directory = output_dir / (kPrefix + std::to_string(state.step()));
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
    run_together(ranks, what,
                 [&] { bytes = write_shards(temporary / rank_file(ranks.rank()), shards); });
    run_together(ranks, what, [&] {
      if (!first) return;
      v1::CheckpointState complete = state;
      complete.set_world_size(ranks.size());
      complete.clear_vectors();
      for (const FlatShard& shard : shards) (*complete.mutable_vectors())[shard.name] = shard.numel;
      const std::string json = to_json(complete);
      write_durably(temporary / kStateFile, json);
      bytes += static_cast<int64_t>(json.size());
      publish_directory(directory);
      prune(output_dir, state.job_id(), total_limit);
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
  const std::map<int, fs::path> checkpoints = checkpoints_of(output_dir, job_id);
  if (checkpoints.empty()) return std::nullopt;
  return FoundCheckpoint{checkpoints.rbegin()->first, checkpoints.rbegin()->second};
}

v1::CheckpointState load_checkpoint(const fs::path& checkpoint,
                                    const std::vector<FlatShard>& shards,
                                    const Collectives& ranks) {
  if (ranks.rank() == 0) delete_leftovers(checkpoint.parent_path());
  const v1::CheckpointState state = read_state(checkpoint / kStateFile);
  SavedShards saved(checkpoint, state.world_size());
  for (const FlatShard& shard : shards) {
    const auto found = state.vectors().find(shard.name);
    if (found == state.vectors().end()) {
      throw UserError(
          kField, checkpoint.string() + ": it holds no " + shard.name + "; was the model another?");
    }
    if (found->second != shard.numel) {
      throw UserError(kField, checkpoint.string() + ": " + shard.name + " has " +
                                  std::to_string(found->second) +
                                  " elements in it, the model has " + std::to_string(shard.numel));
    }
    const int64_t begin = std::min(ranks.rank() * shard.data.numel(), shard.numel);
    const int64_t used = std::min(shard.data.numel(), shard.numel - begin);
    if (used > 0) saved.read(shard.name, begin, shard.data.narrow(0, 0, used));
    shard.data.narrow(0, used, shard.data.numel() - used).zero_();
  }
  return state;
}

}  // namespace tessera
