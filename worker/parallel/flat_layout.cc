#include "worker/parallel/flat_layout.h"

#include <ATen/ceil_div.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace tessera {

std::vector<FlatLayout::Slice> FlatLayout::slices_of_rank(int rank) const {
  const int64_t shard_begin = rank * shard_numel;
  const int64_t shard_end = shard_begin + shard_numel;
  std::vector<Slice> slices;
  for (const FlatEntry& entry : entries) {
    const int64_t begin = std::max(entry.offset, shard_begin);
    const int64_t end = std::min(entry.offset + entry.numel, shard_end);
    if (begin < end)
      slices.push_back({&entry, begin - entry.offset, begin - shard_begin, end - begin});
  }
  return slices;
}

FlatLayout make_flat_layout(
    std::string name, const std::vector<std::pair<std::string, std::vector<int64_t>>>& parameters,
    int world_size) {
  TORCH_CHECK(world_size >= 1, "world_size ", world_size);
  FlatLayout layout;
  layout.name = std::move(name);
  layout.entries.reserve(parameters.size());
  for (const auto& [parameter, shape] : parameters) {
    int64_t numel = 1;
    for (int64_t extent : shape) {
      TORCH_CHECK(extent >= 0 && !__builtin_mul_overflow(numel, extent, &numel), parameter,
                  ": bad shape");
    }
    const int64_t offset = at::round_up(layout.used_numel, FlatLayout::kAlignment);
    layout.entries.push_back({parameter, shape, offset, numel});
    layout.used_numel = offset + numel;
  }
  layout.numel = at::round_up(layout.used_numel, world_size * FlatLayout::kAlignment);
  layout.shard_numel = layout.numel / world_size;
  return layout;
}

}  // namespace tessera
