// Where offloaded bytes lie, and when they leave and return.
#include "worker/memory/offload.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>

#include <csignal>
#include <filesystem>

#include "proto/spec/bytes.h"
#include "worker/errors.h"
#include "worker/kernels/work.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// Before any tensor of the process.
const MemoryLedger& ledger = MemoryLedger::install();

at::Tensor random_bytes(int64_t count) { return at::randn({count}).mul_(50).to(at::kByte); }

class Pages : public testing::TestWithParam<bool> {
 protected:
  OffloadSpace make_space() {
    if (GetParam()) return OffloadSpace(make_disk_pages(at::kCPU, testing::TempDir()));
    return OffloadSpace(make_host_pages(at::kCPU, *stream_));
  }

 private:
  std::unique_ptr<SideStream> stream_ = make_side_stream(at::kCPU);
};

TEST_P(Pages, GiveBackWhatWasWrittenAcrossTheirEnds) {
  OffloadSpace space = make_space();
  std::vector<at::Tensor> tensors;
  std::vector<std::vector<OffloadExtent>> places;
  for (const int64_t bytes : {int64_t{100}, kOffloadPageBytes, int64_t{7}, 2 * kOffloadPageBytes}) {
    tensors.push_back(random_bytes(bytes));
    places.push_back(space.take(bytes));
    space.write(places.back(), tensors.back());
  }
  // Nothing is lost at the ends of pages.
  EXPECT_EQ(space.num_pages(), 4);
  for (size_t i = tensors.size(); i-- > 0;) {
    const at::Tensor back = at::empty_like(tensors[i]);
    space.will_read(places[i]);
    space.read(back, places[i]);
    EXPECT_TRUE(at::equal(back, tensors[i])) << i;
    space.give_back(places[i]);
  }
}

TEST_P(Pages, AreUsedAgain) {
  OffloadSpace space = make_space();
  for (int step = 0; step < 3; ++step) {
    std::vector<std::vector<OffloadExtent>> places;
    for (int i = 0; i < 5; ++i) places.push_back(space.take(kOffloadPageBytes / 2));
    EXPECT_EQ(space.num_pages(), 3);
    // In any order.
    for (const int i : {4, 0, 2, 1, 3}) space.give_back(places[static_cast<size_t>(i)]);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Pages, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Disk" : "Host"; });

TEST(HostPages, AreChargedToTheHostSpace) {
  const auto before = ledger.snapshot(Space::kHost), device_before = ledger.snapshot();
  {
    const std::unique_ptr<SideStream> stream = make_side_stream(at::kCPU);
    OffloadSpace space(make_host_pages(at::kCPU, *stream));
    space.take(1);
    const auto now = ledger.snapshot(Space::kHost);
    EXPECT_EQ(now.current_bytes, before.current_bytes + kOffloadPageBytes);
    EXPECT_EQ(ledger.snapshot().current_bytes, device_before.current_bytes);
  }
  EXPECT_EQ(ledger.snapshot(Space::kHost).current_bytes, before.current_bytes);
}

// A limit on the size of files stands for a disk that is full.
TEST(DiskPages, SayWhereThereIsNoRoom) {
  OffloadSpace space(make_disk_pages(at::kCPU, testing::TempDir()));
  space.take(kOffloadPageBytes);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{static_cast<rlim_t>(kOffloadPageBytes), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string field, message;
  try {
    space.take(1);
  } catch (const UserError& error) {
    field = error.field();
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(field, "memory.activation_offloading_dir");
  EXPECT_THAT(message, testing::HasSubstr("must have room for"));
  EXPECT_THAT(message, testing::HasSubstr(spec::format_bytes(2 * kOffloadPageBytes)));
}

// Three blocks, x -> sin(2 x), each of which saves one tensor of 4000 bytes.
struct Chain {
  explicit Chain(const OffloadOptions& options)
      : offload(options),
        input(at::randn({1000}, at::TensorOptions(options.device)).requires_grad_(true)) {
    at::Tensor x = input;
    for (int i = 0; i < 3; ++i) {
      const ActivationOffload::Block block(offload, {});
      x = (x * 2).sin();
      outputs.push_back(x);
    }
  }
  void run_backward() { torch::autograd::backward({outputs.back().sum()}, {}); }
  at::Tensor expected_gradient() const {
    at::Tensor x = input.detach(), gradient = at::ones_like(x);
    for (int i = 0; i < 3; ++i) {
      gradient = gradient * (x * 2).cos() * 2;
      x = (x * 2).sin();
    }
    return gradient;
  }

  ActivationOffload offload;
  at::Tensor input;
  std::vector<at::Tensor> outputs;
};

TEST(ActivationOffload, BringsBlocksBackAsBackwardComesToThem) {
  for (const bool overlaps : {false, true}) {
    Chain chain({.overlaps = overlaps});
    EXPECT_EQ(chain.offload.offloaded_bytes(), 3 * 4000);
    std::vector<int64_t> away;  // when the gradient of a block's output is there
    for (const at::Tensor& output : chain.outputs) {
      output.register_hook(
          [&](const at::Tensor&) { away.push_back(chain.offload.offloaded_bytes()); });
    }
    chain.run_backward();
    EXPECT_THAT(away, overlaps ? testing::ElementsAre(12000, 4000, 0)
                               : testing::ElementsAre(12000, 8000, 4000));
    EXPECT_EQ(chain.offload.offloaded_bytes(), 0);
    EXPECT_EQ(chain.offload.moved_bytes(), 2 * 3 * 4000);
    EXPECT_TRUE(at::allclose(chain.input.grad(), chain.expected_gradient()));
  }
}

// As a rehearsal counts it.
TEST(ActivationOffload, CountsWhatItMovesByTarget) {
  for (const at::DeviceType device : {at::kCPU, at::kMeta}) {
    for (const bool to_disk : {false, true}) {
      OffloadOptions options{.device = device};
      if (to_disk) options.disk_directory = testing::TempDir();
      WorkCount count;
      const WorkScope scope(count);
      Chain(options).run_backward();
      EXPECT_EQ(count.host_bytes, to_disk ? 0 : 24000) << device;
      EXPECT_EQ(count.disk_bytes, to_disk ? 24000 : 0) << device;
    }
  }
}

TEST(ActivationOffload, FreesItsPlacesWithAGraphThatNeverRunsBackward) {
  Chain chain({});
  chain.outputs.clear();
  EXPECT_EQ(chain.offload.offloaded_bytes(), 0);
}

TEST(ActivationOffload, MovesAStorageOnceForAllWhoSaveIt) {
  ActivationOffload offload({});
  const at::Tensor x = at::randn({10, 100}).requires_grad_(true);
  at::Tensor sum;
  {
    const ActivationOffload::Block block(offload, {});
    const at::Tensor y = x * 2;
    sum = y.sin().sum() + y.cos().sum() + y.t().tan().sum() + y.narrow(0, 2, 5).exp().sum();
  }
  // y once, and the outputs of tan and exp.
  EXPECT_EQ(offload.offloaded_bytes(), 4000 + 4000 + 2000);
  torch::autograd::backward({sum}, {});
  EXPECT_EQ(offload.offloaded_bytes(), 0);
}

// One that is written to between is saved as it was each time.
TEST(ActivationOffload, TellsValuesOfAStorageApart) {
  ActivationOffload offload({});
  const at::Tensor x = at::zeros({1000}).requires_grad_(true), w = at::randn({1000});
  const at::Tensor first = w.clone();
  at::Tensor sum;
  {
    const ActivationOffload::Block block(offload, {});
    sum = (x * w).sum();
    w.add_(1);
    sum = sum + (x * w).sum();
  }
  EXPECT_EQ(offload.offloaded_bytes(), 2 * 4000);
  torch::autograd::backward({sum}, {});
  EXPECT_TRUE(at::allclose(x.grad(), first + first + 1, /*rtol=*/1e-5, /*atol=*/1e-5));
}

TEST(ActivationOffload, LeavesWhatStaysAndWhatIsSmall) {
  ActivationOffload offload({.min_bytes = 400});
  const at::Tensor x = at::randn({1000}).requires_grad_(true), w = at::randn({1000});
  const at::Tensor small = at::randn({99}).requires_grad_(true);
  const ActivationOffload::Block block(offload, {w});
  const at::Tensor y = x * w, z = small.sin();
  EXPECT_EQ(offload.offloaded_bytes(), 0);
}

}  // namespace
}  // namespace tessera
