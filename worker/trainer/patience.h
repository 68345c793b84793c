// Waiting for other ranks however long they work. Collectives give up after some minutes; so
// whoever works has to tell the others now and then that it does.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "worker/parallel/collectives.h"

namespace tessera {

class Patience {
 public:
  // `alive` is called whenever somebody is heard of. The group outlives this.
  Patience(Collectives& group, at::Device device, std::function<void()> alive)
      : group_(group), device_(device), alive_(std::move(alive)) {}

  // This rank works on. All ranks must come to it, or to wait_for_all(), equally often: collective.
  void still_working() { hear(true); }
  // This rank has done its work. Returns when all have.
  void wait_for_all();

 private:
  bool hear(bool works);

  Collectives& group_;
  const at::Device device_;
  const std::function<void()> alive_;
};

}  // namespace tessera
