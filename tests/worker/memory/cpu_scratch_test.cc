// What operators on tensors without data are charged with beside their outputs.
#include "worker/memory/cpu_scratch.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>

#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// Before any tensor of the process.
MemoryLedger& real = MemoryLedger::install();
MemoryLedger& meta = MemoryLedger::install_meta();

at::Tensor matrix(int64_t rows, int64_t columns, at::Device device) {
  return at::empty({rows, columns}, at::TensorOptions(device).dtype(at::kBFloat16));
}

// What a product takes, its output counted.
int64_t product_peak(int64_t rows, int64_t inner, int64_t columns, at::Device device) {
  MemoryLedger& ledger = device.is_meta() ? meta : real;
  const at::Tensor a = matrix(rows, inner, device), b = matrix(inner, columns, device);
  ledger.reset_peak();
  const int64_t before = ledger.snapshot().current_bytes;
  at::mm(a, b);
  return ledger.snapshot().peak_bytes - before;
}

TEST(CpuScratch, IsThatOfARealProduct) {
  at::set_num_threads(1);
  const StandInScope stand_in({.device = at::kCPU, .num_threads = 1});
  const CpuScratchScope scratch;
  for (const auto& [rows, inner, columns] :
       {std::array{48, 64, 96}, std::array{130, 512, 70}, std::array{1, 256, 1000}}) {
    EXPECT_EQ(product_peak(rows, inner, columns, at::kMeta),
              product_peak(rows, inner, columns, at::kCPU))
        << rows << " x " << inner << " x " << columns;
  }
}

// Sums of one type with values of another.
TEST(CpuScratch, IsThatOfRealSumsOfMixedTypes) {
  const StandInScope stand_in({.device = at::kCPU, .num_threads = 1});
  const CpuScratchScope scratch;
  const auto peak = [](at::ScalarType sum_type, at::ScalarType type, bool in_place,
                       at::Device device) {
    MemoryLedger& ledger = device.is_meta() ? meta : real;
    at::Tensor sum = at::zeros({300, 7}, at::TensorOptions(device).dtype(sum_type));
    const at::Tensor values = at::zeros({300, 7}, at::TensorOptions(device).dtype(type));
    ledger.reset_peak();
    const int64_t before = ledger.snapshot().current_bytes;
    if (in_place) {
      sum.add_(values);
    } else {
      sum.mul(values);
    }
    return ledger.snapshot().peak_bytes - before;
  };
  for (const at::ScalarType sum_type : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const bool in_place : {false, true}) {
        EXPECT_EQ(peak(sum_type, type, in_place, at::kMeta),
                  peak(sum_type, type, in_place, at::kCPU))
            << sum_type << " with " << type << (in_place ? " in place" : "");
      }
    }
  }
}

// LibTorch drops what callbacks throw.
TEST(CpuScratch, GoesOnAfterAProductThatCannotBe) {
  at::set_num_threads(1);
  const StandInScope stand_in({.device = at::kCPU, .num_threads = 2});
  const CpuScratchScope scratch;
  EXPECT_ANY_THROW(at::mm(matrix(3, 4, at::kMeta), matrix(5, 6, at::kMeta)));
  EXPECT_EQ(at::get_num_threads(), 1);
  EXPECT_GT(product_peak(131, 513, 71, at::kMeta), 131 * 71 * 2);
}

}  // namespace
}  // namespace tessera
