// Reading a checkpoint (worker/checkpoint/checkpoint.h) on any number of ranks: its flat vectors
// are ranges of elements, and each rank reads the ranges that lie in its own shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/model/safetensors.h"

namespace tessera {

inline constexpr char kCheckpointStateFile[] = "state.json";
std::string checkpoint_rank_file(int rank);  // "rank-00000.safetensors"

// Files are opened when first needed. Not thread safe.
class CheckpointReader {
 public:
  // Reads the state. `field` is the path in the job file that led here. Throws UserError naming the
  // file and what is wrong with it, as all below do.
  CheckpointReader(std::filesystem::path checkpoint, std::string field);

  const v1::CheckpointState& state() const { return state_; }

  // Throws unless every vector is there whole, in files of their full size.
  void check_complete();
  // Throws unless the checkpoint holds a vector of this name and size.
  void check_vector(const std::string& name, int64_t numel) const;

  // Elements [begin, begin + out.numel()) of the flat vector `name`.
  void read(const std::string& name, int64_t begin, at::Tensor out);
  // Fills `shards`, those of rank `rank`, and zeroes the padding at their end.
  void load(const std::vector<FlatShard>& shards, int rank);

 private:
  void read_uneven(const std::string& name, int64_t begin, const at::Tensor& out);
  const SafetensorsFile& file_of(int rank);
  int64_t shard_numel(int rank, const std::string& name);
  [[noreturn]] void fail(const std::string& problem) const;

  std::filesystem::path directory_;
  std::string field_;
  v1::CheckpointState state_;
  std::map<int, SafetensorsFile> files_;
};

}  // namespace tessera
