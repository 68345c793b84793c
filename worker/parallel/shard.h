// Sharded parameters: each rank keeps 1/size of a unit's flat vector, and with ZeRO-3 (FSDP) the
// whole exists only around its use.
//
// A layer (a block, the embedding, the head) has a unit of the parameters that are trained and one
// of those that are frozen, as far as it has such. Parameters are autograd leaves that view one
// flat storage. A gate (worker/parallel/gate.h) has that storage filled with an all-gather, and
// freed after use, which leaves the leaves in place with no memory behind them. When the last leaf
// of a trainable unit has its gradient, the unit's gradients are reduce-scattered into the shard's
// float32 gradient and the storage is freed. A group of one rank is the same path with nothing to
// move: where weights are stored as they are used, the leaves then view the shard itself.
//
// ZeRO-2 keeps the flat storage and gathers into it once after each update. ZeRO-1 keeps each
// rank's gradients whole, too, and reduces them in the last backward of a step.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/memory/attribution.h"
#include "worker/memory/side_stream.h"
#include "worker/model/layer.h"
#include "worker/parallel/collectives.h"
#include "worker/parallel/flat_layout.h"
#include "worker/parallel/reductions.h"

namespace tessera {

class SharedBlocks;

// The flat layout of a unit of these parameters.
FlatLayout layout_of(std::string name, const std::vector<Parameter*>& parameters, int world_size);

// What is sharded beside optimizer states and master weights.
enum class Sharding { kZero1, kZero2, kZero3 };

class ShardedUnit {
 public:
  struct Options {
    at::ScalarType dtype = at::kFloat;  // of the leaves: what is gathered
    at::Device device = at::kCPU;
    // Master weights in float32, gradients, an optimizer's states. Else the unit is frozen: stored
    // as it is gathered, in any dtype, and nothing of it is trained or part of a checkpoint.
    bool trainable = true;
    BlockId block = 0;                 // that its memory is charged to
    Owner owner = Owner::kParameters;  // that its weights are
    Sharding sharding = Sharding::kZero3;
    // The shard lies in host memory. Copied on the side, if such a stream is given.
    bool offload = false;
    SideStream* side = nullptr;
    // The ranks that have the same shard: the step's gradient is summed over them, too, as soon as
    // it is that of this rank's group. Null: there are none.
    Collectives* replicas = nullptr;
  };
  // Gives each parameter its leaf. The references must outlive the unit; the parameters' leaves
  // must not be used after it. Requires parameters that are all trainable, or all not, as `options`
  // says.
  ShardedUnit(std::string name, std::vector<Parameter*> parameters, Collectives& group,
              ReductionQueue& reductions, const Options& options);
  ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  const FlatLayout& layout() const { return layout_; }
  const Options& options() const { return options_; }
  bool trainable() const { return options_.trainable; }
  BlockId block() const { return options_.block; }
  // Whether weight decay applies to entry `i` of the layout.
  bool decays(size_t i) const { return parameters_[i]->decays(); }

  // The parameter at an entry of layout().
  const Parameter& parameter_of(const FlatEntry& entry) const {
    return *parameters_[&entry - layout_.entries.data()];
  }

  // [layout().shard_numel]: the weights of this rank, in float32 (frozen: in options.dtype).
  // Written by the loader and the optimizer, which then call shard_changed().
  at::Tensor shard() const { return shard_; }
  // What was gathered is no longer what the shards hold.
  void shard_changed();
  // float32 [layout().shard_numel], on the device: gradients summed over ranks and over backwards
  // since clear_gradient(); over replicas since the last backward of the step. Undefined before the
  // first backward (ZeRO-1: the last one of the step), and of a frozen unit.
  at::Tensor gradient() const { return gradient_; }
  void clear_gradient();

  // Starts to fill the flat storage; nothing when it is full or being filled.
  void start_gather();
  // Blocks until the flat storage is full, starting if need be.
  void gather();
  // Frees the flat storage (ZeRO-3), unless it is held. The weights must not be needed again before
  // the next gather.
  void release();
  // While it is held, the flat storage stays once it is full, whoever releases it: for many uses in
  // a row that change no weight.
  void hold() { held_ = true; }
  void let_go() {
    held_ = false;
    release();
  }
  // From now on gathered weights lie where all ranks of this host read them; null: no longer. What
  // was gathered goes. The same on all ranks of the group.
  void share_gathered(SharedBlocks* blocks);
  // What being full takes beside the shard: 0 where the flat storage never goes.
  int64_t gathered_bytes() const {
    return comes_and_goes() ? layout_.numel * static_cast<int64_t>(flat_.element_size()) : 0;
  }

  // A use of the unit is about to run backward: allows for the gradients of its leaves.
  void expect_gradients();
  // Ends a backward: leaves that took no part count as zero.
  void finish_backward();
  // After the reductions of the step's last backward: says that the gradient is there where that
  // was not said yet.
  void finish_step();

 private:
  struct LeafHook;
  struct LeafSink;

  void make_storage();
  void make_leaves();
  void make_trainable(size_t index);
  at::Tensor part_of_rank(const at::Tensor& flat) const;
  void on_side(const std::function<void()>& work);
  void copy_shard(const at::Tensor& to);
  bool start_shared_gather();
  void make_gradient();
  at::Tensor gradient_of(size_t index);
  void take_gradient(size_t index);
  void count_arrival(size_t index);
  void zero_what_did_not_arrive();
  void reduce_gradients();
  void reduce_whole_gradients();

  at::ScalarType stored_dtype() const { return trainable() ? at::kFloat : options_.dtype; }
  bool is_single() const { return group_.size() == 1; }
  bool shards_weights() const { return options_.sharding == Sharding::kZero3; }
  bool shards_gradients() const { return options_.sharding != Sharding::kZero1; }
  // Whether a backward adds to what those before it left, in the place of each leaf.
  bool adds_up() const { return is_single() || !shards_gradients(); }
  // Whether the shard is this rank's part of the flat storage, which then never goes.
  bool shard_is_part() const {
    return stored_dtype() == options_.dtype && !options_.offload &&
           (is_single() || !shards_weights());
  }
  bool comes_and_goes() const { return shards_weights() && !shard_is_part(); }

  FlatLayout layout_;
  std::vector<Parameter*> parameters_;
  std::vector<std::unique_ptr<GradientSink>> sinks_;  // of the parameters
  Collectives& group_;
  ReductionQueue& reductions_;
  Options options_;
  at::Tensor shard_;
  at::Tensor gradient_;
  at::Tensor flat_;  // [layout_.numel] in the leaves' dtype; its storage may come and go
  // [layout_.numel], of several ranks: gradients of one backward in the leaves' dtype, while they
  // come in; with ZeRO-1 their sum since the last reduction, in float32.
  at::Tensor flat_gradient_;
  SharedBlocks* shared_blocks_ = nullptr;
  std::unique_ptr<Work> gathering_;
  bool full_ = false;
  bool held_ = false;
  bool is_told_ = false;  // that the gradient of this step is there
  std::vector<bool> arrived_;
  std::vector<bool> written_;  // by a sink, to which more may be added
  size_t num_arrived_ = 0;
  bool is_of_replicas_ = false;  // gradient_ is summed over them
};

}  // namespace tessera
