// Where a layer uses sharded weights: gates that have them gathered and freed, and the next ones
// prefetched (worker/parallel/shard.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "worker/model/layer.h"
#include "worker/parallel/shard.h"

namespace tessera {

// One use of a layer's units, in the order of forward.
//
// open() gathers them and starts to gather those of the gate after it. Backward runs the gates in
// reverse: it comes to one by the gradient of its output, which is when that of the gate after it
// is over.
class ShardGate : public WeightGate {
 public:
  struct Options {
    bool reshard_after_forward = true;  // else the weights stay until backward
    bool needed_in_backward = true;     // the embedding's are not
    BlockId block = 0;  // that allocations between open and close, and in backward, are charged to
  };
  ShardGate(std::vector<ShardedUnit*> units, const Options& options)
      : units_(std::move(units)), options_(options) {}
  // The uses around this one, for prefetch.
  void set_neighbours(ShardGate* previous, ShardGate* next) {
    previous_ = previous;
    next_ = next;
  }

  void open() override;
  at::Tensor close(const at::Tensor& output) override;

 private:
  void start_gather();
  void gather();
  void release();
  void before_backward();

  std::vector<ShardedUnit*> units_;
  Options options_;
  ShardGate* previous_ = nullptr;
  ShardGate* next_ = nullptr;
  bool has_backward_ = false;  // of the last forward: not where nothing up to here is trained
};

// A layer behind a gate.
class GatedLayer : public Layer {
 public:
  GatedLayer(std::unique_ptr<Layer> inner, WeightGate& gate)
      : inner_(std::move(inner)), gate_(gate) {}
  at::Tensor forward(const at::Tensor& x, const Stream& stream) override {
    gate_.open();
    return gate_.close(inner_->forward(x, stream));
  }
  std::vector<Parameter*> parameters() override { return inner_->parameters(); }
  std::vector<Linear*> linears() override { return inner_->linears(); }

 private:
  std::unique_ptr<Layer> inner_;
  WeightGate& gate_;
};

}  // namespace tessera
