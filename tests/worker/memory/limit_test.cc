// A limit on the device space, and what is known of an allocation that it refused.
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <numeric>
#include <string>

#include "worker/errors.h"
#include "worker/memory/device_memory.h"
#include "worker/memory/host_memory.h"
#include "worker/memory/report.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;

// Before any tensor of the process.
MemoryLedger& ledger = MemoryLedger::install();

at::Tensor mebibytes(int64_t count) { return at::empty({count * kMiB}, at::kByte); }

// Room for `room` more MiB while it lives.
class Limit {
 public:
  explicit Limit(int64_t room) {
    use_device(ledger, at::kCPU, ledger.snapshot().current_bytes + room * kMiB);
  }
  ~Limit() { use_device(ledger, at::kCPU, 0); }
};

std::string refused(int64_t count) {
  try {
    mebibytes(count);
  } catch (const MemoryError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceLimit, RefusesTheAllocationThatWouldCrossIt) {
  const Limit limit(8);
  at::Tensor held = mebibytes(5);
  const auto before = ledger.snapshot();
  EXPECT_NE(refused(4), "");
  EXPECT_EQ(ledger.snapshot().current_bytes, before.current_bytes);
  EXPECT_EQ(ledger.snapshot().peak_bytes, before.peak_bytes);
  EXPECT_EQ(refused(3), "") << "exactly the limit";
  held.reset();
  EXPECT_EQ(refused(8), "");
}

TEST(DeviceLimit, IsOfTheDeviceSpaceOnly) {
  const Limit limit(1);
  const at::Tensor offloaded = empty_host({16 * kMiB}, at::kByte, at::kCPU);
  EXPECT_NE(refused(2), "");
}

TEST(DeviceLimit, SaysWhoAskedAndWhoHolds) {
  const Limit limit(8);
  const OwnerScope parameters(Owner::kParameters);
  const at::Tensor weights = mebibytes(5);
  const OwnerScope activations(Owner::kActivations);
  const PhaseScope phase(Phase::kBackward);
  const BlockScope block(block_id("model.layers.3"));
  const at::Tensor saved = mebibytes(2);
  const std::string message = refused(4);
  EXPECT_THAT(
      message,
      StartsWith("cannot allocate 4.0 MiB for activations of model.layers.3 in backward: "));
  EXPECT_THAT(message, HasSubstr("are taken: parameters 5.0 MiB, activations 2.0 MiB"));
}

TEST(DeviceLimit, TheLastRefusalIsKeptAsItWas) {
  {
    const Limit limit(8);
    const OwnerScope owner(Owner::kGradients);
    const at::Tensor held = mebibytes(5);
    refused(4);
  }
  const MemoryRefusal refusal = ledger.last_refusal().value();
  EXPECT_EQ(refusal.bytes, 4 * kMiB);
  EXPECT_EQ(refusal.who.owner, Owner::kGradients);
  const MemoryTotals& device = refusal.totals[0];
  EXPECT_GE(device.current_by_owner[static_cast<size_t>(Owner::kGradients)], 5 * kMiB);
  EXPECT_EQ(refusal.device_limit, device.current_bytes + 3 * kMiB);
  const int64_t sum =
      std::accumulate(refusal.cells.begin(), refusal.cells.end(), int64_t{0},
                      [](int64_t bytes, const MemoryCell& cell) { return bytes + cell.bytes; });
  EXPECT_EQ(sum, device.current_bytes);

  const v1::OutOfMemory message = out_of_memory(refusal);
  EXPECT_EQ(message.requested().owner(), "gradients");
  EXPECT_EQ(message.requested().bytes(), 4 * kMiB);
  EXPECT_EQ(message.space(), "device");
  EXPECT_EQ(message.memory().current_bytes(), device.current_bytes);
  EXPECT_EQ(message.memory().device_limit_bytes(), refusal.device_limit);
  EXPECT_EQ(message.cells_size(), static_cast<int>(refusal.cells.size()));
}

TEST(Reports, SumUpTheSmallestCells) {
  ledger.reset_peak();
  const OwnerScope owner(Owner::kKvCache);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 600; ++i) {
    const BlockScope block(block_id("reports." + std::to_string(i)));
    tensors.push_back(at::empty({1000 - i}, at::kByte));
  }
  const v1::MemoryPeak peak = memory_peak(ledger);
  EXPECT_EQ(peak.peak_bytes(), ledger.snapshot().peak_bytes);
  EXPECT_EQ(peak.reached().owner(), "kv_cache");
  EXPECT_EQ(peak.reached().block(), "reports.599");
  EXPECT_LT(peak.cells_size(), 400);
  int64_t sum = 0;
  for (const v1::MemoryCell& cell : peak.cells()) sum += cell.bytes();
  EXPECT_EQ(sum, peak.peak_bytes());
  EXPECT_EQ(peak.cells(peak.cells_size() - 1).block(), "others");
}

TEST(Reports, ASnapshotHasBothSpaces) {
  const Limit limit(64);
  const at::Tensor other = mebibytes(1);
  const OwnerScope owner(Owner::kOptimizer);
  const at::Tensor offloaded = empty_host({3 * kMiB}, at::kByte, at::kCPU);
  const v1::MemorySnapshot snapshot = memory_snapshot(ledger);
  EXPECT_EQ(snapshot.host_current_bytes(), ledger.snapshot(Space::kHost).current_bytes);
  int64_t host_sum = 0;
  for (const v1::OwnerBytes& bytes : snapshot.host_owners()) host_sum += bytes.current_bytes();
  EXPECT_EQ(host_sum, snapshot.host_current_bytes());
  EXPECT_GE(snapshot.host_current_bytes(), 3 * kMiB);
  EXPECT_EQ(snapshot.device_limit_bytes(), ledger.device_limit());
  EXPECT_EQ(snapshot.unattributed_at_peak_bytes(), ledger.snapshot().at_peak_by_owner[0]);
  EXPECT_FALSE(snapshot.has_device_allocator());
}

}  // namespace
}  // namespace tessera
