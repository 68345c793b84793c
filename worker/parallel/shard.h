// Sharded parameters (ZeRO-3, FSDP): each rank keeps 1/size of a unit's flat float32 vector, and
// the whole exists only around its use.
//
// A unit is a block, the embedding, or the head. Its parameters are autograd leaves that view one
// flat storage. Opening a gate fills that storage with an all-gather (issued ahead by the gate
// before it); closing frees it, leaving the leaves in place with no memory behind them; a hook on
// the output fills it again for backward. When the last leaf has its gradient, the unit's gradients
// are reduce-scattered into the shard's float32 gradient and the storage is freed. A group of one
// rank is the same path with nothing to move: in float32 the leaves then view the shard itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/model/layer.h"
#include "worker/parallel/collectives.h"
#include "worker/parallel/flat_layout.h"

namespace tessera {

// At most one reduce-scatter is under way at a time, so that gradients of two units at most are
// whole.
class ReductionQueue {
 public:
  // Waits for the one before. `keep` stays alive until the work is done.
  void push(std::unique_ptr<Work> work, at::Tensor keep);
  void finish();

 private:
  std::unique_ptr<Work> work_;
  at::Tensor kept_;
};

// The flat layout of a unit of these parameters.
FlatLayout layout_of(std::string name, const std::vector<Parameter*>& parameters, int world_size);

class ShardedUnit {
 public:
  struct Options {
    at::ScalarType compute_dtype = at::kFloat;
    at::Device device = at::kCPU;
  };
  // Gives each parameter its leaf. The references must outlive the unit; the parameters' leaves
  // must not be used after it.
  ShardedUnit(std::string name, std::vector<Parameter*> parameters, Collectives& group,
              ReductionQueue& reductions, const Options& options);
  ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  const FlatLayout& layout() const { return layout_; }
  // Whether weight decay applies to entry `i` of the layout.
  bool decays(size_t i) const { return parameters_[i]->decays(); }

  // The parameter at an entry of layout().
  const Parameter& parameter_of(const FlatEntry& entry) const {
    return *parameters_[&entry - layout_.entries.data()];
  }

  // float32 [layout().shard_numel]: master weights of this rank. Written by the loader and the
  // optimizer.
  at::Tensor shard() const { return shard_; }
  // float32, like shard(): gradients summed over ranks and over backwards since clear_gradient().
  // Undefined before the first backward.
  at::Tensor gradient() const { return gradient_; }
  void clear_gradient();

  // Starts to fill the flat storage; nothing when it is full or being filled.
  void start_gather();
  // Blocks until the flat storage is full, starting if need be.
  void gather();
  // Frees the flat storage. The weights must not be needed again before the next gather.
  void release();

  // A use of the unit is about to run backward: allows for the gradients of its leaves.
  void expect_gradients();
  // Ends a backward: leaves that took no part count as zero.
  void finish_backward();

 private:
  struct LeafHook;
  struct LeafSink;

  void make_leaves();
  at::Tensor gradient_of(size_t index);
  void take_gradient(size_t index);
  void count_arrival(size_t index);
  void zero_what_did_not_arrive();
  void reduce_gradients();
  bool is_identity() const;

  FlatLayout layout_;
  std::vector<Parameter*> parameters_;
  std::vector<std::unique_ptr<GradientSink>> sinks_;  // of the parameters
  Collectives& group_;
  ReductionQueue& reductions_;
  Options options_;
  at::Tensor shard_;
  at::Tensor gradient_;
  at::Tensor flat_;           // [layout_.numel] in the compute dtype; its storage comes and goes
  at::Tensor flat_gradient_;  // likewise, while gradients of a backward come in
  std::unique_ptr<Work> gathering_;
  bool full_ = false;
  std::vector<bool> arrived_;
  size_t num_arrived_ = 0;
};

// One use of a unit's weights in the order of forward.
class ShardGate : public WeightGate {
 public:
  struct Options {
    bool reshard_after_forward = true;  // else the weights stay until backward
    bool needed_in_backward = true;     // the embedding's are not
  };
  ShardGate(ShardedUnit& unit, const Options& options) : unit_(unit), options_(options) {}
  // The uses around this one, for prefetch.
  void set_neighbours(ShardGate* previous, ShardGate* next) {
    previous_ = previous;
    next_ = next;
  }

  void open() override;
  at::Tensor close(const at::Tensor& output) override;

 private:
  void before_backward();

  ShardedUnit& unit_;
  Options options_;
  ShardGate* previous_ = nullptr;
  ShardGate* next_ = nullptr;
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

 private:
  std::unique_ptr<Layer> inner_;
  WeightGate& gate_;
};

}  // namespace tessera
