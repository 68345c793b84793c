// Sharded, crash-safe checkpoints of the training state.
//
// A checkpoint is a directory output_dir/checkpoint-STEP with one rank-RRRRR.safetensors a rank and
// a state.json (ProtoJSON of CheckpointState, written last). It is written under a temporary name,
// fsynced and renamed by rank 0 after a barrier, so that what is named checkpoint-STEP is complete.
// Leftovers of a crash are deleted at the next save or load.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// One flat vector of the state; this rank holds shard `rank` of it. Examples:
// "model.layers.3/parameter", "model.layers.3/exp_avg".
struct FlatShard {
  std::string name;
  at::Tensor data;    // 1-D, CPU or device, [shard_numel]
  int64_t numel = 0;  // of the whole vector without the padding at its end
  // Where `data` begins in it, of a vector whose shards are not of one size; then it has no
  // padding. Else shard `rank` begins at rank * shard_numel.
  std::optional<int64_t> begin = {};
};

// The directory of the checkpoint of a step.
std::filesystem::path checkpoint_path(const std::filesystem::path& output_dir, int step);

struct FoundCheckpoint {
  int step = 0;
  std::filesystem::path path;
};

// The newest complete checkpoint that job `job_id` wrote (CheckpointState.job_id); none when there
// is none. Those of other jobs in the same directory are left alone, until one of the same step is
// written over them.
std::optional<FoundCheckpoint> find_latest_checkpoint(const std::filesystem::path& output_dir,
                                                      const std::string& job_id);

// The checkpoint at `path`: that directory itself, or the newest complete one of any job in it.
// Throws UserError with `field` when there is none.
FoundCheckpoint find_checkpoint(const std::filesystem::path& path, const std::string& field);

// Deletes what a crash left in `output_dir` of checkpoints being written or taken away.
void delete_leftovers(const std::filesystem::path& output_dir);

// Takes the oldest checkpoints of a job away until `total_limit` are left (0: all stay), but never
// the newest or that of `best_step`. One that cannot be taken away now is tried again after the
// next save.
void prune_checkpoints(const std::filesystem::path& output_dir, const std::string& job_id,
                       int total_limit, int best_step);

}  // namespace tessera
