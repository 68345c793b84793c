// The values that shards have now, for a thread that writes them while training goes on.
//
// Nothing is copied at first: weights and optimizer states change only when the optimizer steps,
// and until then they are read where they lie. What is not read by then is copied, so the memory of
// a copy is needed only where the disk is slower than a step, and only for the rest.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "worker/checkpoint/checkpoint.h"

namespace tessera {

// One thread reads, another, which owns the shards, detaches.
class Snapshot {
 public:
  explicit Snapshot(const std::vector<FlatShard>& shards);

  // Hands out all values, in order and in parts of at most 4 Mi elements: `sink` gets the number of
  // the shard, the part's first element in it, and the part. Copies are freed as they were handed
  // out. Ends early when `sink` throws.
  using Sink = std::function<void(size_t shard, int64_t begin, const at::Tensor& part)>;
  void read(const Sink& sink);

  // Call before a value changes: copies what is not read yet to host memory, charged to
  // Owner::kCheckpoint. Waits for the part being read. Returns the bytes copied; 0 when called
  // again. Throws MemoryError; then nothing may change until read() has ended.
  int64_t detach();

 private:
  struct Part {
    size_t shard;
    int64_t begin;
    at::Tensor values;  // a view of the shard, or a copy
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_, but for the part that is being read.
  std::vector<Part> parts_;
  size_t next_ = 0;
  bool reading_ = false;
  bool detaching_ = false;
  bool detached_ = false;
};

}  // namespace tessera
