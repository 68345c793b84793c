// The two spaces of a ledger, and the ledger of meta tensors.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "worker/kernels/stand_in.h"
#include "worker/memory/host_memory.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// Before any tensor of the process.
MemoryLedger& real = MemoryLedger::install();
MemoryLedger& meta = MemoryLedger::install_meta();

struct Current {
  int64_t device, host;
  bool operator==(const Current&) const = default;
};

Current current(const MemoryLedger& ledger) {
  return {ledger.snapshot(Space::kDevice).current_bytes,
          ledger.snapshot(Space::kHost).current_bytes};
}

at::Tensor bytes(int64_t count, at::Device device) {
  return at::empty({count}, at::TensorOptions(device).dtype(at::kByte));
}

class Spaces : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  at::Device device_{GetParam()};
  MemoryLedger& ledger_ = device_.is_meta() ? meta : real;
  MemoryLedger& other_ = device_.is_meta() ? real : meta;
};

TEST_P(Spaces, ScopeChargesTheHost) {
  const Current before = current(ledger_), other_before = current(other_);
  at::Tensor on_device = bytes(100, device_);
  at::Tensor on_host;
  {
    const HostSpaceScope scope;
    on_host = bytes(7, device_);
  }
  const at::Tensor again = bytes(1, device_);
  EXPECT_EQ(current(ledger_), (Current{before.device + 101, before.host + 7}));
  std::thread([&] { on_host.reset(); }).join();
  on_device.reset();
  EXPECT_EQ(current(ledger_), (Current{before.device + 1, before.host}));
  EXPECT_EQ(current(other_), other_before);
}

// Of a device whose allocator rounds: its own memory only, while it is stood for.
TEST(Meta, IsChargedInWholesOfTheAllocatorItStandsFor) {
  const Current before = current(meta);
  {
    const StandInScope scope({.device = at::kCUDA, .granularity = 512});
    const at::Tensor on_device = bytes(513, at::kMeta);
    const at::Tensor on_host = empty_host({7}, at::kByte, at::kMeta);
    EXPECT_EQ(current(meta), (Current{before.device + 1024, before.host + 7}));
  }
  const at::Tensor after = bytes(5, at::kMeta);
  EXPECT_EQ(current(meta), (Current{before.device + 5, before.host}));
}

TEST_P(Spaces, EmptyHostChargesTheHostAndTheOwner) {
  const OwnerScope owner(Owner::kOptimizer);
  const auto index = static_cast<size_t>(Owner::kOptimizer);
  const auto before = ledger_.snapshot(Space::kHost);
  const auto device_before = ledger_.snapshot(Space::kDevice);
  const at::Tensor tensor = empty_host({3, 5}, at::kFloat, device_);
  EXPECT_EQ(tensor.sizes(), (at::IntArrayRef{3, 5}));
  EXPECT_EQ(tensor.scalar_type(), at::kFloat);
  EXPECT_EQ(tensor.device().type(), device_.type());
  const auto after = ledger_.snapshot(Space::kHost);
  EXPECT_EQ(after.current_by_owner[index], before.current_by_owner[index] + 60);
  EXPECT_EQ(ledger_.snapshot(Space::kDevice).current_bytes, device_before.current_bytes);
}

TEST_P(Spaces, PeaksAreOfOneSpace) {
  ledger_.reset_peak();
  const Current before = current(ledger_);
  bytes(500, device_);
  empty_host({300}, at::kByte, device_);
  EXPECT_EQ(ledger_.snapshot(Space::kDevice).peak_bytes, before.device + 500);
  EXPECT_EQ(ledger_.snapshot(Space::kHost).peak_bytes, before.host + 300);
  ledger_.reset_peak();
  EXPECT_EQ(ledger_.snapshot(Space::kHost).peak_bytes, before.host);
}

// The same operators take the same bytes, at the peak too.
TEST_P(Spaces, OperatorsAreCharged) {
  ledger_.reset_peak();
  const Current before = current(ledger_);
  {
    const auto options = at::TensorOptions(device_).dtype(at::kFloat);
    at::Tensor x = at::empty({16, 32}, options);
    at::Tensor y = at::mm(x, at::full({32, 8}, 2, options));
    y = at::add(y, y);
    EXPECT_EQ(current(ledger_).device, before.device + 4 * (16 * 32 + 16 * 8));
  }
  EXPECT_EQ(ledger_.snapshot().peak_bytes, before.device + 4 * (16 * 32 + 32 * 8 + 16 * 8));
  EXPECT_EQ(current(ledger_), before);
}

INSTANTIATE_TEST_SUITE_P(Devices, Spaces, ::testing::Values(at::kCPU, at::kMeta),
                         [](const auto& info) { return c10::DeviceTypeName(info.param, true); });

TEST(MetaLedger, HasNoMemoryBehindItsTensors) {
  const Current before = current(meta);
  const int64_t rss = process_memory().rss_bytes;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 64; ++i) tensors.push_back(bytes(int64_t{1} << 36, at::kMeta));
  EXPECT_EQ(current(meta).device, before.device + (int64_t{64} << 36));
  EXPECT_EQ(tensors[0].storage().data_ptr().get(), nullptr);
  EXPECT_LT(process_memory().rss_bytes - rss, 64 << 20);
  tensors.clear();
  EXPECT_EQ(current(meta), before);
}

// As the sharder does with the flat vector of a unit.
TEST(MetaLedger, StoragesAreFreedAndFilledInPlace) {
  const Current before = current(meta);
  const at::Tensor tensor = bytes(4096, at::kMeta);
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  c10::Allocator* allocator = storage->allocator();
  storage->reset();
  EXPECT_EQ(current(meta), before);
  storage->set_data_ptr_noswap(allocator->allocate(4096));
  storage->set_nbytes(size_t{4096});
  EXPECT_EQ(current(meta).device, before.device + 4096);
}

TEST(MetaLedger, InstallsOnce) { EXPECT_EQ(&MemoryLedger::install_meta(), &meta); }

}  // namespace
}  // namespace tessera
