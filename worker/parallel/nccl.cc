// NCCL on CUDA devices, through LibTorch's process group. Linked in place of no_nccl.cc with
// TESSERA_CUDA.
//
// Operations run on NCCL's stream; wait() orders the current stream after them and does not block
// the host. A peer that is lost shows at a wait, or, for one that hangs, when the process group's
// watchdog ends the process.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "worker/parallel/collectives_common.h"
#include "worker/parallel/rendezvous.h"
#include "worker/parallel/store_world.h"

namespace tessera {
namespace {

using PendingWork = c10::intrusive_ptr<c10d::Work>;

template <typename Call>
auto or_network_error(const char* operation, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw NetworkError(std::string(operation) + ": " + describe(error));
  }
}

class NcclWork final : public Work {
 public:
  NcclWork(const char* operation, PendingWork pending)
      : operation_(operation), pending_(std::move(pending)) {}
  void wait() override {
    or_network_error(operation_, [&] { return pending_->wait(); });
  }

 private:
  const char* operation_;
  PendingWork pending_;
};

class ReduceScatterWork final : public Work {
 public:
  ReduceScatterWork(PendingWork pending, at::Tensor output, std::vector<at::Tensor> parts)
      : pending_(std::move(pending)), output_(std::move(output)), parts_(std::move(parts)) {}

  void wait() override {
    or_network_error("reduce_scatter_add", [&] { return pending_->wait(); });
    add_in_order(output_, parts_);
    parts_.clear();
  }

 private:
  PendingWork pending_;
  at::Tensor output_;
  std::vector<at::Tensor> parts_;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(c10::intrusive_ptr<c10d::ProcessGroupNCCL> group, at::Device device)
      : group_(std::move(group)), device_(device) {}

  ~NcclCollectives() override {
    try {
      group_->shutdown();
    } catch (const std::exception&) {
      // A peer that is gone has been reported by the operation that missed it.
    }
  }

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    check_all_gather(output, input, size());
    return start("all_gather", [&] { return group_->_allgather_base(output, input); });
  }

  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    check_reduce_scatter(output, input, size());
    if (input.scalar_type() == at::kFloat) {
      at::Tensor sum = at::empty_like(output);
      auto pending = or_network_error("reduce_scatter_add",
                                      [&] { return group_->_reduce_scatter_base(sum, input); });
      return std::make_unique<ReduceScatterWork>(std::move(pending), output, std::vector{sum});
    }
    // NCCL would round every partial sum to the narrow type.
    at::Tensor gathered = at::empty_like(input);
    std::vector<int64_t> even;
    auto pending = or_network_error(
        "reduce_scatter_add", [&] { return group_->alltoall_base(gathered, input, even, even); });
    return std::make_unique<ReduceScatterWork>(std::move(pending), output, gathered.chunk(size()));
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    check_all_to_all(output, input, size());
    std::vector<int64_t> even;
    return start("all_to_all", [&] { return group_->alltoall_base(output, input, even, even); });
  }

  // One send and one receive: LibTorch leaves out what is empty.
  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    check_shift(output, input, distance, most);
    const ShiftPeers peers(rank(), size(), distance);
    std::vector<int64_t> received(size()), sent(size());
    received[peers.from] = output.numel();
    sent[peers.to] = input.numel();
    return start("shift", [&] { return group_->alltoall_base(output, input, received, sent); });
  }

  void all_reduce_sum(at::Tensor values) override {
    check_all_reduce(values);
    c10::NoGradGuard no_grad;
    std::vector<at::Tensor> on_device{values.to(device_)};
    or_network_error("all_reduce_sum", [&] { return group_->allreduce(on_device)->wait(); });
    if (!on_device[0].is_alias_of(values))
      values.copy_(on_device[0]);  // of the host: blocks until it is there
  }

  void barrier() override { all_reduce_sum(at::zeros({1}, at::kLong)); }

 private:
  template <typename Call>
  static std::unique_ptr<Work> start(const char* operation, const Call& call) {
    return std::make_unique<NcclWork>(operation, or_network_error(operation, call));
  }

  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  const at::Device device_;
};

}  // namespace

std::unique_ptr<World> make_nccl_world(const RendezvousOptions& options, int device_index) {
  if (options.size == 1) return make_single_world();
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(device_index));
  c10::cuda::set_device(device.index());
  return make_store_world(options, [device](const c10::intrusive_ptr<c10d::Store>& store,
                                            const RendezvousOptions& group) {
    auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = group.timeout;
    auto process_group =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(store, group.rank, group.size, nccl);
    process_group->setBoundDeviceId(device);
    auto ranks = std::make_unique<NcclCollectives>(std::move(process_group), device);
    ranks->barrier();  // connects
    return ranks;
  });
}

}  // namespace tessera
