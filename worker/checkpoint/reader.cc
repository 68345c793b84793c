#include "worker/checkpoint/reader.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "worker/checkpoint/tensor_io.h"
#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxStateBytes = 64 << 20;
constexpr int kMaxWorldSize = 99'999;

v1::CheckpointState read_state(const fs::path& path, const std::string& field) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) throw UserError(field, path.string() + ": " + error.message());
  if (bytes > kMaxStateBytes) throw UserError(field, path.string() + ": it is too large");
  std::ifstream file(path, std::ios::binary);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  v1::CheckpointState state;
  if (!google::protobuf::util::JsonStringToMessage(json, &state).ok() || state.world_size() < 1 ||
      state.world_size() > kMaxWorldSize || state.step() < 0 || state.epoch() < 0 ||
      state.row() < 0) {
    throw UserError(field, path.string() + ": it is not the state of a checkpoint");
  }
  return state;
}

}  // namespace

std::string checkpoint_rank_file(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.safetensors", rank);
  return name;
}

CheckpointReader::CheckpointReader(fs::path checkpoint, std::string field)
    : directory_(std::move(checkpoint)),
      field_(std::move(field)),
      state_(read_state(directory_ / kCheckpointStateFile, field_)) {}

void CheckpointReader::check_complete() {
  for (const auto& [name, numel] : state_.vectors()) {
    int64_t there = 0;
    bool is_even = true;
    for (int rank = 0; rank < state_.world_size(); ++rank) {
      there += shard_numel(rank, name);
      is_even &= shard_numel(rank, name) == shard_numel(0, name);
    }
    // Only shards of one size are padded.
    if (numel > there || numel < 0 || (!is_even && numel != there))
      fail("the shards of " + name + " do not fit together");
  }
}

void CheckpointReader::check_vector(const std::string& name, int64_t numel) const {
  const auto found = state_.vectors().find(name);
  if (found == state_.vectors().end()) fail("it holds no " + name + "; was the model another?");
  if (found->second != numel) {
    fail(name + " has " + std::to_string(found->second) + " elements in it, the model has " +
         std::to_string(numel));
  }
}

void CheckpointReader::read(const std::string& name, int64_t begin, at::Tensor out) {
  const int64_t numel_a_rank = shard_numel(0, name);
  const std::string misfit = "the shards of " + name + " do not fit together";
  if (begin + out.numel() > numel_a_rank * state_.world_size()) fail(misfit);
  for (int64_t done = 0; done < out.numel();) {
    const int rank = static_cast<int>((begin + done) / numel_a_rank);
    const int64_t offset = (begin + done) % numel_a_rank;
    const int64_t numel = std::min(numel_a_rank - offset, out.numel() - done);
    if (shard_numel(rank, name) != numel_a_rank) fail(misfit);
    read_tensor(file_of(rank), name, offset, out.narrow(0, done, numel));
    done += numel;
  }
}

void CheckpointReader::read_uneven(const std::string& name, int64_t begin, const at::Tensor& out) {
  const int64_t end = begin + out.numel();
  int64_t first = 0;  // of the rank's shard
  for (int rank = 0; rank < state_.world_size() && first < end; ++rank) {
    const int64_t last = first + shard_numel(rank, name);
    const int64_t from = std::max(begin, first), to = std::min(end, last);
    if (from < to)
      read_tensor(file_of(rank), name, from - first, out.narrow(0, from - begin, to - from));
    first = last;
  }
  if (first < end) fail("the shards of " + name + " do not fit together");
}

void CheckpointReader::load(const std::vector<FlatShard>& shards, int rank) {
  for (const FlatShard& shard : shards) {
    check_vector(shard.name, shard.numel);
    if (shard.begin) {
      read_uneven(shard.name, *shard.begin, shard.data);
      continue;
    }
    const int64_t begin = std::min(rank * shard.data.numel(), shard.numel);
    const int64_t used = std::min(shard.data.numel(), shard.numel - begin);
    if (used > 0) read(shard.name, begin, shard.data.narrow(0, 0, used));
    shard.data.narrow(0, used, shard.data.numel() - used).zero_();
  }
}

const SafetensorsFile& CheckpointReader::file_of(int rank) {
  auto found = files_.find(rank);
  if (found == files_.end()) {
    const fs::path path = directory_ / checkpoint_rank_file(rank);
    found = files_.emplace(rank, SafetensorsFile::open(path, field_)).first;
  }
  return found->second;
}

int64_t CheckpointReader::shard_numel(int rank, const std::string& name) {
  const auto& tensors = file_of(rank).tensors();
  const auto found = tensors.find(name);
  if (found == tensors.end()) fail("rank " + std::to_string(rank) + " holds no " + name);
  return found->second.numel;
}

void CheckpointReader::fail(const std::string& problem) const {
  throw UserError(field_, directory_.string() + ": " + problem);
}

}  // namespace tessera
