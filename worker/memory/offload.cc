#include "worker/memory/offload.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/kernels/work.h"
#include "worker/memory/attribution.h"

namespace tessera {
namespace {

std::unique_ptr<OffloadPages> make_pages(const OffloadOptions& options, SideStream& stream) {
  if (options.disk_directory) return make_disk_pages(options.device, *options.disk_directory);
  return make_host_pages(options.device, stream);
}

// All of a storage.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return at::empty({0}, tensor.options().dtype(at::kByte))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

// How a tensor views its storage.
struct View {
  at::TensorOptions options;
  std::vector<int64_t> sizes, strides;
  int64_t offset;

  explicit View(const at::Tensor& tensor)
      : options(tensor.options().requires_grad(false)),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        offset(tensor.storage_offset()) {}
  at::Tensor of(const at::Tensor& bytes) const {
    return at::empty({0}, options).set_(bytes.storage(), offset, sizes, strides);
  }
};

}  // namespace

// What was moved, until the last function that saved it is done.
struct ActivationOffload::Storage {
  ActivationOffload& offload;
  int64_t block;
  int64_t num_bytes;
  std::vector<OffloadExtent> extents;  // empty once it is back
  at::Tensor bytes;                    // on the device, once it is back or on its way
  SideStream::Mark arrived;

  Storage(ActivationOffload& offload, int64_t block, int64_t num_bytes)
      : offload(offload),
        block(block),
        num_bytes(num_bytes),
        extents(offload.space_.take(num_bytes)) {
    offload.offloaded_bytes_ += num_bytes;
  }
  ~Storage() { leave(); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Its place is free.
  void leave() {
    if (extents.empty()) return;
    offload.space_.give_back(extents);
    offload.offloaded_bytes_ -= num_bytes;
    extents.clear();
  }
};

class ActivationOffload::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(ActivationOffload& offload) : offload_(offload) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    if (offload_.stays(tensor)) {
      // Not the tensor itself: an output would keep alive the function that saves it.
      stayed_ = tensor.detach();
      return;
    }
    view_.emplace(tensor);
    moved_ = offload_.move_out(tensor);
  }

  at::Tensor call_unpack_hook() override {
    return moved_ ? view_->of(offload_.bring_back(*moved_)) : stayed_;
  }

 private:
  ActivationOffload& offload_;
  at::Tensor stayed_;
  std::optional<View> view_;
  std::shared_ptr<Storage> moved_;
};

ActivationOffload::ActivationOffload(const OffloadOptions& options)
    : options_(options),
      stream_(make_side_stream(options.overlaps ? options.device : at::Device(at::kCPU))),
      space_(make_pages(options, *stream_)) {}

ActivationOffload::~ActivationOffload() = default;

ActivationOffload::Block::Block(ActivationOffload& offload, const std::vector<at::Tensor>& stays)
    : offload_(offload), saved_(&offload) {
  offload.begin_block(stays);
}

ActivationOffload::Block::~Block() { offload_.end_block(); }

std::unique_ptr<torch::autograd::SavedVariableHooks> ActivationOffload::make_hooks() {
  return std::make_unique<Hooks>(*this);
}

void ActivationOffload::begin_block(const std::vector<at::Tensor>& stays) {
  stays_.clear();
  for (const at::Tensor& tensor : stays) stays_.push_back(tensor.storage().unsafeGetStorageImpl());
  blocks_.push_back({num_blocks_++, {}});
}

void ActivationOffload::end_block() {
  known_.clear();
  // The block before has had this one's time to leave.
  stream_->join(left_mark_);
  left_ = std::move(leaving_);
  leaving_.clear();
  left_mark_ = stream_->mark();
}

ActivationOffload::Key ActivationOffload::key_of(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), static_cast<uint32_t>(tensor._version())};
}

bool ActivationOffload::stays(const at::Tensor& tensor) const {
  if (!tensor.has_storage() || tensor.device() != options_.device) return true;
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto num_bytes = static_cast<int64_t>(storage->nbytes());
  if (num_bytes == 0 || num_bytes < options_.min_bytes) return true;
  if (std::ranges::find(stays_, storage) != stays_.end()) return true;
  if (options_.max_bytes == 0 || offloaded_bytes_ + num_bytes <= options_.max_bytes) return false;
  return find_moved(tensor) == nullptr;
}

// What was moved of the same storage with the same values, in this block.
std::shared_ptr<ActivationOffload::Storage> ActivationOffload::find_moved(
    const at::Tensor& tensor) const {
  const auto found = known_.find(key_of(tensor));
  return found == known_.end() ? nullptr : found->second.moved.lock();
}

std::shared_ptr<ActivationOffload::Storage> ActivationOffload::move_out(const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  if (std::shared_ptr<Storage> moved = find_moved(tensor)) return moved;
  const c10::Storage& storage = tensor.storage();
  auto moved = std::make_shared<Storage>(*this, blocks_.back().index,
                                         static_cast<int64_t>(storage.nbytes()));
  const at::Tensor bytes = bytes_of(tensor);
  space_.write(moved->extents, bytes);
  count(moved->num_bytes);
  if (options_.overlaps) leaving_.push_back(bytes);
  known_.insert_or_assign(key_of(tensor), Known{storage.getWeakStorageImpl(), moved});
  blocks_.back().storages.push_back(moved);
  return moved;
}

void ActivationOffload::start_return(Storage& storage) {
  if (storage.bytes.defined()) return;
  const OwnerScope scope(Owner::kActivations);
  storage.bytes =
      at::empty({storage.num_bytes}, at::TensorOptions(options_.device).dtype(at::kByte));
  space_.read(storage.bytes, storage.extents);
  storage.arrived = stream_->mark();
  count(storage.num_bytes);
  // Whoever takes the place next writes on the same stream.
  storage.leave();
}

// Blocks run backward in reverse order. What is left of later ones needs no more thought.
void ActivationOffload::enter_backward(int64_t block) {
  stream_->join(left_mark_);
  left_.clear();
  left_mark_ = nullptr;
  while (!blocks_.empty() && blocks_.back().index >= block) blocks_.pop_back();
  if (blocks_.empty()) return;
  for (const std::weak_ptr<Storage>& storage : blocks_.back().storages) {
    const std::shared_ptr<Storage> next = storage.lock();
    if (!next || next->extents.empty()) continue;
    if (options_.overlaps) {
      start_return(*next);
    } else {
      space_.will_read(next->extents);
    }
  }
}

at::Tensor ActivationOffload::bring_back(Storage& storage) {
  const c10::AutoGradMode no_grad(false);
  if (!blocks_.empty() && blocks_.back().index >= storage.block) enter_backward(storage.block);
  start_return(storage);
  stream_->join(storage.arrived);
  storage.arrived = nullptr;
  return storage.bytes;
}

void ActivationOffload::count(int64_t bytes) {
  moved_bytes_ += bytes;
  if (options_.disk_directory) count_disk_bytes(bytes);
}

}  // namespace tessera
