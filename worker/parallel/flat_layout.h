// How the parameters of one sharded unit (a block, the embedding, the head) lie in one flat vector.
//
// The vector is the concatenation of the parameters, each begun at a multiple of kAlignment
// elements, cut in `world_size` equal shards. Loading, checkpoints, export and the sharder all
// speak of ranges of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct FlatEntry {
  std::string name;  // as in the Hugging Face checkpoint
  std::vector<int64_t> shape;
  int64_t offset = 0;  // first element in the flat vector
  int64_t numel = 0;
};

struct FlatLayout {
  // Blocks of 8-bit optimizer states are as long: none lies in two entries, nor on two ranks.
  static constexpr int64_t kAlignment = 256;

  std::string name;  // "model.layers.3"
  std::vector<FlatEntry> entries;
  int64_t used_numel = 0;   // to the end of the last entry; the same for any world_size
  int64_t numel = 0;        // of the whole vector, padded to world_size * kAlignment
  int64_t shard_numel = 0;  // numel / world_size

  // A part of an entry that lies in one shard.
  struct Slice {
    const FlatEntry* entry;
    int64_t entry_begin;  // first element, counted in the entry
    int64_t shard_begin;  // the same element, counted in the shard
    int64_t numel;
  };
  // In order of the shard. The pointers hold as long as `entries` is not changed or copied.
  std::vector<Slice> slices_of_rank(int rank) const;
};

// Requires world_size >= 1 and no negative extents.
FlatLayout make_flat_layout(
    std::string name, const std::vector<std::pair<std::string, std::vector<int64_t>>>& parameters,
    int world_size);

}  // namespace tessera
