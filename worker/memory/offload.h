// Activation offloading: what layers save for backward lies in host memory, or on disk, until
// backward needs it.
//
// A saved tensor is moved by its storage, once however many functions save it or views of it. It is
// brought back when it is first needed, and its place is free again from then on. What lives
// on the device anyway stays there: parameters, what all layers share, what is too small to be
// worth a copy, and what is beyond the bound.
//
// Where copies run beside the computation, a block's tensors leave the device by the end of the
// next block, and those of the block before it come back while a block runs backward: two blocks'
// tensors are on the device at a time. Else one block's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "worker/memory/offload_pages.h"
#include "worker/memory/saved_tensors.h"
#include "worker/memory/side_stream.h"

namespace tessera {

struct OffloadOptions {
  at::Device device = at::kCPU;
  // Copies run beside the computation: a CUDA job with host memory.
  bool overlaps = false;
  // Absent: host memory.
  std::optional<std::filesystem::path> disk_directory;
  int64_t min_bytes = 1024;  // smaller storages stay
  int64_t max_bytes = 0;     // that are offloaded at a time; 0: no bound
};

// Of one rank. It must outlive the graphs of the forwards it saw. Not thread safe; backward may run
// on another thread than forward, as autograd has it on CUDA.
class ActivationOffload : public SavedTensors {
 public:
  // Throws UserError.
  explicit ActivationOffload(const OffloadOptions& options);
  ~ActivationOffload() override;

  // While it lives, what functions save belongs to one block, and is offloaded. `stays`: tensors
  // whose storages stay on the device anyway.
  class Block {
   public:
    Block(ActivationOffload& offload, const std::vector<at::Tensor>& stays);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    ActivationOffload& offload_;
    SavedTensorsScope saved_;
  };

  // Moved so far, off the device and back.
  int64_t moved_bytes() const { return moved_bytes_; }
  // Of tensors that are away from the device now.
  int64_t offloaded_bytes() const { return offloaded_bytes_; }

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

 private:
  class Hooks;
  struct Storage;
  struct SavedBlock {
    int64_t index = 0;
    std::vector<std::weak_ptr<Storage>> storages;
  };
  // A storage by itself, and what it held.
  struct Key {
    const c10::StorageImpl* storage;
    uint32_t version;
    auto operator<=>(const Key&) const = default;
  };
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> alive;  // so that no other takes the address
    std::weak_ptr<Storage> moved;
  };

  void begin_block(const std::vector<at::Tensor>& stays);
  void end_block();
  static Key key_of(const at::Tensor& tensor);
  bool stays(const at::Tensor& tensor) const;
  std::shared_ptr<Storage> find_moved(const at::Tensor& tensor) const;
  std::shared_ptr<Storage> move_out(const at::Tensor& tensor);
  void start_return(Storage& storage);
  void enter_backward(int64_t block);
  at::Tensor bring_back(Storage& storage);
  void count(int64_t bytes);

  OffloadOptions options_;
  std::unique_ptr<SideStream> stream_;
  OffloadSpace space_;
  int64_t moved_bytes_ = 0;
  int64_t offloaded_bytes_ = 0;

  // Of the block that runs forward.
  std::vector<const c10::StorageImpl*> stays_;
  std::map<Key, Known> known_;
  std::vector<at::Tensor> leaving_;  // what is still copied from

  // Of the block before it.
  std::vector<at::Tensor> left_;
  SideStream::Mark left_mark_;

  std::deque<SavedBlock> blocks_;  // that backward has not come to
  int64_t num_blocks_ = 0;
};

}  // namespace tessera
