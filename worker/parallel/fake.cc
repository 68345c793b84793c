// One rank of a group that is not there, on tensors without data. It allocates what the backend in
// question allocates through LibTorch, and keeps it for as long; nothing is sent.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/kernels/work.h"
#include "worker/memory/ledger.h"
#include "worker/parallel/collectives_common.h"
#include "worker/parallel/world.h"

namespace tessera {
namespace {

// Holds what the operation holds until it is waited for.
class HeldWork final : public Work {
 public:
  explicit HeldWork(at::Tensor held) : held_(std::move(held)) {}
  void wait() override { held_.reset(); }

 private:
  at::Tensor held_;
};

class FakeCollectives final : public Collectives {
 public:
  explicit FakeCollectives(const FakeGroup& group) : group_(group) {}

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    check_all_gather(output, input, size());
    count_exchange(input);
    return make_finished_work();
  }

  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    check_reduce_scatter(output, input, size());
    count_exchange(input.narrow(0, 0, output.numel()));
    c10::NoGradGuard no_grad;
    switch (group_.backend) {
      case FakeGroup::Backend::kSharedMemory:
        return make_finished_work();
      case FakeGroup::Backend::kGloo: {
        const OwnerScope owner(Owner::kCommunication);
        return std::make_unique<HeldWork>(
            at::empty({(size() - 1) * output.numel()}, input.options()));
      }
      case FakeGroup::Backend::kNccl: {
        const bool adds_itself = input.scalar_type() == at::kFloat;
        return std::make_unique<HeldWork>(
            at::empty({adds_itself ? output.numel() : input.numel()}, input.options()));
      }
    }
    return nullptr;
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    check_all_to_all(output, input, size());
    count_exchange(input.narrow(0, 0, input.numel() / size()));
    return make_finished_work();
  }

  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    check_shift(output, input, distance, most);
    const auto bytes = static_cast<int64_t>(output.nbytes());
    if (distance % size() != 0) count_link_bytes(bytes);
    count_kernel(/*flops=*/0, 2 * bytes);
    return make_finished_work();
  }

  void all_reduce_sum(at::Tensor values) override {
    check_all_reduce(values);
    count_exchange(values);
    if (group_.backend == FakeGroup::Backend::kNccl) return;
    c10::NoGradGuard no_grad;
    const int64_t chunk =
        group_.backend == FakeGroup::Backend::kGloo ? kGlooReduceChunk : kSharedMemoryReduceChunk;
    const OwnerScope owner(Owner::kCommunication);
    at::empty({size() * std::min(chunk, values.numel())}, values.options());
  }

  void barrier() override {}

 private:
  // All other ranks' parts as large as `part` are received, and all parts gone through.
  void count_exchange(const at::Tensor& part) const {
    const int64_t bytes = part.numel() * static_cast<int64_t>(part.element_size());
    count_link_bytes((size() - 1) * bytes);
    count_kernel(/*flops=*/0, size() * bytes);
  }

  const FakeGroup group_;
};

class FakeRankWorld final : public World {
 public:
  explicit FakeRankWorld(const FakeWorld& world) : world_(world) {}

  int rank() const override { return world_.rank; }
  int size() const override { return world_.size; }
  std::unique_ptr<Collectives> make_group(const std::string&,
                                          const std::vector<int>& ranks) override {
    using Backend = FakeGroup::Backend;
    const auto machine = [&](int rank) { return rank / std::max(1, world_.ranks_per_machine); };
    const bool one_machine = machine(ranks.front()) == machine(ranks.back());
    const Backend of_cpu = one_machine ? Backend::kSharedMemory : Backend::kGloo;
    return make_fake_collectives({place_in(ranks, world_.rank), static_cast<int>(ranks.size()),
                                  world_.cuda ? Backend::kNccl : of_cpu});
  }

 private:
  const FakeWorld world_;
};

}  // namespace

std::unique_ptr<World> make_fake_world(const FakeWorld& world) {
  return std::make_unique<FakeRankWorld>(world);
}

std::unique_ptr<Collectives> make_fake_collectives(const FakeGroup& group) {
  if (group.size == 1) return make_single_collectives();
  return std::make_unique<FakeCollectives>(group);
}

}  // namespace tessera
