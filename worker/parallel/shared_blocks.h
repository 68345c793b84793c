// Gathered weights that the ranks of one host share: each writes its own part of a block, and all
// read the whole where it lies. An all-gather is then a copy of the rank's part and no more, and a
// block is in memory once a host.
//
// There is room for two blocks, so that the next is gathered while one is used. All ranks must
// take, fill and give back the same sizes in the same order. Not thread safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "worker/parallel/collectives.h"
#include "worker/parallel/shared_ring.h"

namespace tessera {

class SharedBlocks {
 public:
  // Of blocks of up to `block_bytes`. Collective. Null, on all ranks alike, where not all of them
  // are processes of one user on one host, or tensors are not in its memory. A rank that waits for
  // the others longer than `timeout` throws NetworkError, or at once when one has ended.
  static std::unique_ptr<SharedBlocks> open(Collectives& group, at::Device device,
                                            int64_t block_bytes, std::chrono::milliseconds timeout);

  // Room for `bytes`, given back when the pointer goes, which must be before this does; charged to
  // the ledger as an allocation of this thread. Nothing, on all ranks alike, where there is none.
  std::optional<c10::DataPtr> take(int64_t bytes);
  // To be called after each take(): `write` writes this rank's part once no rank needs what was
  // there before, now or in wait(), after which all parts are there.
  std::unique_ptr<Work> fill(std::function<void()> write);

 private:
  class Filling;
  struct Half {
    int64_t used = 0;  // bytes
    int64_t num_taken = 0;
  };
  struct Lease;
  struct PendingWrite {
    int64_t number;     // of the block
    int64_t free_from;  // so many blocks given back make its room free
    std::function<void()> write;
  };

  SharedBlocks(std::unique_ptr<SharedRings> rings, int size, int64_t half_bytes)
      : rings_(std::move(rings)), size_(size), half_bytes_(half_bytes) {}
  void give_back(size_t half);
  void write_pending();
  void await(int64_t number);

  std::unique_ptr<SharedRings> rings_;
  const int size_;
  const int64_t half_bytes_;
  Half halves_[2];
  int64_t num_filled_ = 0, num_given_back_ = 0;
  int64_t free_from_ = 0;  // of the block that was taken last
  std::deque<PendingWrite> pending_;
};

}  // namespace tessera
