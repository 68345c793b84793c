#include "worker/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "worker/absent_error.h"
#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/reader.h"

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

std::optional<FoundCheckpoint> newest(const std::map<int, fs::path>& checkpoints) {
  if (checkpoints.empty()) return std::nullopt;
  return FoundCheckpoint{checkpoints.rbegin()->first, checkpoints.rbegin()->second};
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, int step) {
  return output_dir / (kPrefix + std::to_string(step));
}

void prune_checkpoints(const fs::path& output_dir, const std::string& job_id, int total_limit,
                       int best_step) {
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
  if (found) return *found;
  const std::string message =
      field + ": " + path.string() + " neither is nor holds a checkpoint that is complete";
  if (!fs::exists(path, ignored)) throw AbsentError(field, message);
  throw UserError(field, message);
}

}  // namespace tessera
