// What the backends share: checks of arguments, and the one order in which numbers are added.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/parallel/collectives.h"

namespace tessera {

// Throw c10::Error when the tensors are not what collectives.h asks for.
void check_all_gather(const at::Tensor& output, const at::Tensor& input, int size);
void check_reduce_scatter(const at::Tensor& output, const at::Tensor& input, int size);
void check_all_to_all(const at::Tensor& output, const at::Tensor& input, int size);
void check_shift(const at::Tensor& output, const at::Tensor& input, int distance, int64_t most);
void check_all_reduce(const at::Tensor& values);

// Whom a shift sends to and receives from.
struct ShiftPeers {
  ShiftPeers(int rank, int size, int distance)
      : to((rank + distance) % size), from((rank + size - distance % size) % size) {}
  int to, from;
};

// output[i] = ((output[i] + parts[0][i]) + parts[1][i]) + ... in output's type. All have the same
// number of elements and are contiguous; a part may have a type narrower than output's, and all
// parts have the same.
void add_in_order(at::Tensor output, const std::vector<at::Tensor>& parts);

// An all_reduce of a CPU backend gathers at most this many elements a rank at a time.
inline constexpr int64_t kGlooReduceChunk = 256 * 1024;
inline constexpr int64_t kSharedMemoryReduceChunk = 64 * 1024;

// The index of `rank` in `ranks`. Throws c10::Error where it is not one of them.
int place_in(const std::vector<int>& ranks, int rank);

// An operation that was over when it was called.
std::unique_ptr<Work> make_finished_work();

}  // namespace tessera
