#include "worker/memory/ledger.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "worker/errors.h"

namespace tessera {
namespace {

// Before any tensor of the process.
MemoryLedger& ledger = MemoryLedger::install();

int64_t of(const std::array<int64_t, kNumOwners>& by_owner, Owner owner) {
  return by_owner[static_cast<size_t>(owner)];
}

int64_t total(const std::array<int64_t, kNumOwners>& by_owner) {
  return std::accumulate(by_owner.begin(), by_owner.end(), int64_t{0});
}

at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

TEST(Ledger, ChargesExactBytesToTheInnermostScope) {
  const auto before = ledger.snapshot();
  OwnerScope outer(Owner::kParameters);
  at::Tensor a = bytes(1001);
  {
    OwnerScope inner(Owner::kOptimizer);
    at::Tensor b = bytes(77);
    EXPECT_EQ(of(ledger.snapshot().current_by_owner, Owner::kOptimizer),
              of(before.current_by_owner, Owner::kOptimizer) + 77);
  }
  at::Tensor c = bytes(10);
  const auto now = ledger.snapshot();
  EXPECT_EQ(of(now.current_by_owner, Owner::kParameters),
            of(before.current_by_owner, Owner::kParameters) + 1011);
  EXPECT_EQ(of(now.current_by_owner, Owner::kOptimizer),
            of(before.current_by_owner, Owner::kOptimizer));
  EXPECT_EQ(now.current_bytes, before.current_bytes + 1011);
}

TEST(Ledger, FreesAreChargedBackWhereverTheyHappen) {
  const auto before = ledger.snapshot();
  at::Tensor tensor;
  {
    OwnerScope scope(Owner::kActivations);
    tensor = bytes(5000);
  }
  std::thread([moved = std::move(tensor)]() mutable {
    OwnerScope scope(Owner::kHead);
    moved.reset();
  }).join();
  EXPECT_EQ(ledger.snapshot().current_by_owner, before.current_by_owner);
}

TEST(Ledger, ScopesAreOfOneThread) {
  const auto before = ledger.snapshot();
  OwnerScope scope(Owner::kData);
  at::Tensor tensor;
  std::thread([&] { tensor = bytes(64); }).join();
  EXPECT_EQ(of(ledger.snapshot().current_by_owner, Owner::kData),
            of(before.current_by_owner, Owner::kData));
  EXPECT_EQ(of(ledger.snapshot().current_by_owner, Owner::kOther),
            of(before.current_by_owner, Owner::kOther) + 64);
}

TEST(Ledger, SplitsThePeakAsItWas) {
  ledger.reset_peak();
  const auto before = ledger.snapshot();
  {
    OwnerScope scope(Owner::kParameters);
    at::Tensor weights = bytes(1000);
    {
      OwnerScope inner(Owner::kActivations);
      at::Tensor activations = bytes(4000);
    }
    OwnerScope inner(Owner::kGradients);
    at::Tensor gradients = bytes(3000);
  }
  const auto now = ledger.snapshot();
  EXPECT_EQ(now.peak_bytes, before.current_bytes + 5000);
  EXPECT_EQ(of(now.at_peak_by_owner, Owner::kActivations),
            of(before.current_by_owner, Owner::kActivations) + 4000);
  EXPECT_EQ(of(now.at_peak_by_owner, Owner::kGradients),
            of(before.current_by_owner, Owner::kGradients));
  EXPECT_EQ(of(now.peak_by_owner, Owner::kGradients),
            of(before.current_by_owner, Owner::kGradients) + 3000);
  EXPECT_EQ(total(now.at_peak_by_owner), now.peak_bytes);
  ledger.reset_peak();
  EXPECT_EQ(ledger.snapshot().peak_bytes, before.current_bytes);
}

TEST(Ledger, BlocksAreAlignedAndWritable) {
  std::vector<at::Tensor> tensors;
  for (int64_t size = 1; size < 3000; size += 37) {
    tensors.push_back(at::full({size}, 7, at::kByte));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data_ptr()) % 64, 0u);
  }
  for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor[-1].item<int>(), 7);
}

TEST(Ledger, EmptyTensorsCostNothing) {
  const auto before = ledger.snapshot();
  at::Tensor empty = bytes(0);
  EXPECT_EQ(ledger.snapshot().current_bytes, before.current_bytes);
  empty.resize_({100});
  EXPECT_EQ(ledger.snapshot().current_bytes, before.current_bytes + 100);
}

TEST(Ledger, RawAllocationsAreCountedToo) {
  const auto before = ledger.snapshot();
  c10::Allocator* allocator = c10::GetCPUAllocator();
  void* raw = allocator->raw_allocate(300);
  EXPECT_EQ(ledger.snapshot().current_bytes, before.current_bytes + 300);
  allocator->raw_deallocate(raw);
  EXPECT_EQ(ledger.snapshot().current_bytes, before.current_bytes);
}

TEST(Ledger, BalancesAndSplitsExactlyUnderThreads) {
  const auto before = ledger.snapshot();
  ledger.reset_peak();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      OwnerScope scope(static_cast<Owner>(1 + thread));
      std::vector<at::Tensor> ring(16);
      for (int i = 0; i < 20'000; ++i) ring[i % 16] = bytes(1 + i * 131 % 5000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto now = ledger.snapshot();
  EXPECT_EQ(now.current_by_owner, before.current_by_owner);
  EXPECT_EQ(total(now.at_peak_by_owner), now.peak_bytes);
}

TEST(Ledger, AnAllocationThatCannotBeSaysWhoAsked) {
  OwnerScope scope(Owner::kGradients);
  const auto before = ledger.snapshot();
  try {
    bytes(int64_t{1} << 60);
    FAIL();
  } catch (const MemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot allocate 1024.0 PiB for gradients in load"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(ledger.snapshot().current_bytes, before.current_bytes);
}

TEST(Ledger, InstallsOnce) { EXPECT_EQ(&MemoryLedger::install(), &ledger); }

}  // namespace
}  // namespace tessera
