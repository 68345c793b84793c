// The group of one rank: the identity.
#include <c10/core/GradMode.h>

#include "worker/parallel/collectives_common.h"
#include "worker/parallel/world.h"

namespace tessera {
namespace {

class SingleCollectives final : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input) override {
    check_all_gather(output, input, 1);
    return copy(output, input);
  }

  std::unique_ptr<Work> reduce_scatter_add(at::Tensor output, at::Tensor input) override {
    check_reduce_scatter(output, input, 1);
    add_in_order(output, {input});
    return make_finished_work();
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input) override {
    check_all_to_all(output, input, 1);
    return copy(output, input);
  }

  std::unique_ptr<Work> shift(at::Tensor output, at::Tensor input, int distance,
                              int64_t most) override {
    check_shift(output, input, distance, most);
    return copy(output, input);
  }

  void all_reduce_sum(at::Tensor values) override { check_all_reduce(values); }

  void barrier() override {}

 private:
  static std::unique_ptr<Work> copy(at::Tensor& output, const at::Tensor& input) {
    const c10::NoGradGuard no_grad;
    if (!output.is_alias_of(input) || output.storage_offset() != input.storage_offset())
      output.copy_(input);
    return make_finished_work();
  }
};

class SingleWorld final : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Collectives> make_group(const std::string&, const std::vector<int>&) override {
    return make_single_collectives();
  }
};

}  // namespace

std::unique_ptr<Collectives> make_single_collectives() {
  return std::make_unique<SingleCollectives>();
}

std::unique_ptr<World> make_single_world() { return std::make_unique<SingleWorld>(); }

}  // namespace tessera
