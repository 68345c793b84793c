#include "worker/parallel/shard.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "worker/kernels/stand_in.h"
#include "worker/memory/host_memory.h"
#include "worker/memory/ledger.h"
#include "worker/parallel/shared_blocks.h"
#include "worker/parallel/watched_work.h"

namespace tessera {
namespace {

// Autograd must not see what moves weights and gradients about.
using NoGrad = c10::AutoGradMode;

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (int i = static_cast<int>(shape.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * shape[i + 1];
  return strides;
}

void free_storage(const at::Tensor& tensor) { tensor.storage().unsafeGetStorageImpl()->reset(); }

void fill_storage(const at::Tensor& tensor, c10::DataPtr data, int64_t nbytes) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(static_cast<size_t>(nbytes));
}

void fill_storage(const at::Tensor& tensor, int64_t nbytes) {
  c10::Allocator* allocator = tensor.storage().unsafeGetStorageImpl()->allocator();
  fill_storage(tensor, allocator->allocate(static_cast<size_t>(nbytes)), nbytes);
}

}  // namespace

FlatLayout layout_of(std::string name, const std::vector<Parameter*>& parameters, int world_size) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (const Parameter* parameter : parameters)
    shapes.emplace_back(parameter->name, parameter->stored_shape());
  return make_flat_layout(std::move(name), shapes, world_size);
}

// Tells the unit that a leaf has its whole gradient of this backward.
struct ShardedUnit::LeafHook : torch::autograd::PostAccumulateGradHook {
  LeafHook(ShardedUnit* unit, size_t index) : unit(unit), index(index) {}
  void operator()(const torch::autograd::Variable&) override { unit->take_gradient(index); }
  ShardedUnit* unit;
  size_t index;
};

// For layers that write a leaf's gradient where it belongs.
struct ShardedUnit::LeafSink : GradientSink {
  LeafSink(ShardedUnit* unit, size_t index) : unit(unit), index(index) {}
  Place place() override {
    unit->expect_gradients();
    const bool begun = unit->adds_up() || unit->written_[index];
    unit->written_[index] = true;
    return {unit->gradient_of(index), begun};
  }
  at::ScalarType dtype() const override {
    return unit->adds_up() ? at::kFloat : unit->options_.dtype;
  }
  void done() override { unit->count_arrival(index); }
  ShardedUnit* unit;
  size_t index;
};

ShardedUnit::ShardedUnit(std::string name, std::vector<Parameter*> parameters, Collectives& group,
                         ReductionQueue& reductions, const Options& options)
    : parameters_(std::move(parameters)),
      group_(group),
      reductions_(reductions),
      options_(options) {
  layout_ = layout_of(std::move(name), parameters_, group_.size());
  arrived_.resize(parameters_.size());
  written_.resize(parameters_.size());
  for (const Parameter* parameter : parameters_) {
    TORCH_CHECK(parameter->trainable == trainable(), parameter->name, " is in the wrong unit, ",
                layout_.name);
  }
  const BlockScope block(options_.block);
  const NoGrad no_grad(false);
  make_storage();
  make_leaves();
}

// The gather writes into flat_, so it has to end first. A lost peer ends it, too: whoever destroys
// the unit then has that error in hand, and a second one out of here would abort the process.
ShardedUnit::~ShardedUnit() {
  if (!gathering_) return;
  try {
    gathering_->wait();
  } catch (const NetworkError&) {
  }
}

void ShardedUnit::make_storage() {
  const auto dtype = at::TensorOptions(options_.device).dtype(options_.dtype);
  const OwnerScope scope(options_.owner);
  if (comes_and_goes()) {
    const OwnerScope gathered(Owner::kCommunication);
    flat_ = at::empty({layout_.numel}, dtype);
  } else {
    flat_ = at::zeros({layout_.numel}, dtype);
  }
  if (shard_is_part()) {
    shard_ = part_of_rank(flat_);
  } else if (options_.offload) {
    shard_ = empty_host({layout_.shard_numel}, stored_dtype(), options_.device).zero_();
  } else {
    shard_ = at::zeros({layout_.shard_numel}, dtype.dtype(stored_dtype()));
  }
}

void ShardedUnit::make_leaves() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const FlatEntry& entry = layout_.entries[i];
    // Its own version counter, and no autograd link to flat_: refilling the storage is no in-place
    // change.
    parameters_[i]->value =
        at::empty({0}, flat_.options())
            .set_(flat_.storage(), entry.offset, entry.shape, contiguous_strides(entry.shape));
    if (trainable()) make_trainable(i);
  }
  if (comes_and_goes()) free_storage(flat_);
  full_ = shard_is_part() && is_single();
}

void ShardedUnit::make_trainable(size_t index) {
  at::Tensor& leaf = parameters_[index]->value;
  leaf.requires_grad_(true);
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<LeafHook>(this, index));
  sinks_.push_back(std::make_unique<LeafSink>(this, index));
  parameters_[index]->gradient_sink = sinks_.back().get();
}

at::Tensor ShardedUnit::part_of_rank(const at::Tensor& flat) const {
  return flat.narrow(0, group_.rank() * layout_.shard_numel, layout_.shard_numel);
}

void ShardedUnit::on_side(const std::function<void()>& work) {
  if (options_.side == nullptr) return work();
  options_.side->run(work);
}

// A copy between devices that changes the type would wait for the CPU, which makes it.
void ShardedUnit::copy_shard(const at::Tensor& to) {
  if (!options_.offload) {
    to.copy_(shard_);
  } else if (on_cpu(to) || stored_dtype() == options_.dtype) {
    copy_across(to, shard_);
  } else {
    const at::Tensor staged = at::empty(shard_.sizes(), to.options().dtype(stored_dtype()));
    copy_across(staged, shard_);
    to.copy_(staged);
  }
}

void ShardedUnit::start_gather() {
  if (full_ || gathering_) return;
  const NoGrad no_grad(false);
  const BlockScope block(options_.block);
  const OwnerScope scope(Owner::kCommunication);
  if (start_shared_gather()) return;
  if (comes_and_goes()) fill_storage(flat_, layout_.numel * flat_.element_size());
  const at::Tensor mine = part_of_rank(flat_);
  on_side([&] {
    if (!shard_is_part()) copy_shard(mine);
    gathering_ = group_.all_gather(flat_, mine);
  });
}

// Nothing but this rank's part is moved. Returns false where there is no room for it.
bool ShardedUnit::start_shared_gather() {
  if (shared_blocks_ == nullptr || !comes_and_goes()) return false;
  const int64_t nbytes = layout_.numel * flat_.element_size();
  std::optional<c10::DataPtr> place = shared_blocks_->take(nbytes);
  if (!place) return false;
  fill_storage(flat_, std::move(*place), nbytes);
  std::unique_ptr<Work> filling = shared_blocks_->fill([this] {
    const NoGrad no_grad(false);
    copy_shard(part_of_rank(flat_));
  });
  gathering_ = watched(group_, "shared_gather", nbytes / group_.size(), std::move(filling));
  return true;
}

void ShardedUnit::share_gathered(SharedBlocks* blocks) {
  if (gathering_) {
    // With a lost peer there is nothing to wait for, and an error is in hand already.
    try {
      gather();
    } catch (const NetworkError&) {
      gathering_.reset();
      full_ = true;
    }
  }
  release();
  shared_blocks_ = blocks;
}

void ShardedUnit::gather() {
  start_gather();
  if (!gathering_) return;
  gathering_->wait();
  gathering_.reset();
  if (options_.side != nullptr) options_.side->join();
  full_ = true;
}

void ShardedUnit::release() {
  if (!comes_and_goes() || !full_ || held_) return;
  free_storage(flat_);
  full_ = false;
}

void ShardedUnit::shard_changed() {
  if (shard_is_part() && is_single()) return;
  if (gathering_) gather();
  release();
  full_ = false;
}

void ShardedUnit::clear_gradient() {
  gradient_.reset();
  is_of_replicas_ = false;
}

void ShardedUnit::make_gradient() {
  if (gradient_.defined()) return;
  const BlockScope block(options_.block);
  const OwnerScope scope(Owner::kGradients);
  gradient_ = at::zeros({layout_.shard_numel}, flat_.options().dtype(at::kFloat));
}

void ShardedUnit::expect_gradients() {
  if (!trainable() || num_arrived_ > 0 || flat_gradient_.defined()) return;
  const NoGrad no_grad(false);
  const BlockScope block(options_.block);
  if (!is_single() && !shards_gradients()) {
    const OwnerScope scope(Owner::kGradients);
    flat_gradient_ = at::zeros({layout_.numel}, flat_.options().dtype(at::kFloat));
    return;
  }
  make_gradient();
  if (is_single()) return;
  const OwnerScope scope(Owner::kCommunication);
  flat_gradient_ = at::empty({layout_.numel}, flat_.options());
}

// Where the gradient of this backward goes.
at::Tensor ShardedUnit::gradient_of(size_t index) {
  const FlatEntry& entry = layout_.entries[index];
  const at::Tensor& flat = is_single() ? gradient_ : flat_gradient_;
  return flat.narrow(0, entry.offset, entry.numel).view(entry.shape);
}

void ShardedUnit::take_gradient(size_t index) {
  const NoGrad no_grad(false);
  expect_gradients();
  at::Tensor& grad = parameters_[index]->value.mutable_grad();
  if (adds_up() || written_[index]) {
    gradient_of(index).add_(grad);
  } else {
    gradient_of(index).copy_(grad);
  }
  grad.reset();
  count_arrival(index);
}

void ShardedUnit::count_arrival(size_t index) {
  arrived_[index] = true;
  if (++num_arrived_ == parameters_.size()) reduce_gradients();
}

// Padding, and leaves that took no part.
void ShardedUnit::zero_what_did_not_arrive() {
  for (size_t i = 0; i < layout_.entries.size(); ++i) {
    const FlatEntry& entry = layout_.entries[i];
    const bool last = i + 1 == layout_.entries.size();
    const int64_t end = last ? layout_.numel : layout_.entries[i + 1].offset;
    const int64_t begin = entry.offset + (arrived_[i] ? entry.numel : 0);
    flat_gradient_.narrow(0, begin, end - begin).zero_();
  }
}

void ShardedUnit::reduce_gradients() {
  const NoGrad no_grad(false);
  is_told_ = false;
  // The gathered weights go first, so that the buffers of the reduction can take their place.
  release();
  if (is_single()) {
    finish_step();
  } else if (shards_gradients()) {
    zero_what_did_not_arrive();
    reduce_whole_gradients();
  } else if (reductions_.last_of_step()) {
    reduce_whole_gradients();
  }
  arrived_.assign(parameters_.size(), false);
  written_.assign(parameters_.size(), false);
  num_arrived_ = 0;
}

void ShardedUnit::reduce_whole_gradients() {
  make_gradient();
  std::unique_ptr<Work> work = group_.reduce_scatter_add(gradient_, flat_gradient_);
  reductions_.push(std::move(work), std::move(flat_gradient_), [this] { finish_step(); });
}

void ShardedUnit::finish_backward() {
  const bool has_unreduced =
      flat_gradient_.defined() && (shards_gradients() || reductions_.last_of_step());
  if (num_arrived_ > 0 || has_unreduced) reduce_gradients();
  if (gathering_) gather();
  release();
}

void ShardedUnit::finish_step() {
  if (is_told_ || !reductions_.last_of_step() || !gradient_.defined()) return;
  is_told_ = true;
  if (options_.replicas != nullptr && !is_of_replicas_) {
    const NoGrad no_grad(false);
    options_.replicas->all_reduce_sum(gradient_);
    is_of_replicas_ = true;
  }
  reductions_.gradient_is_there(*this);
}

}  // namespace tessera
