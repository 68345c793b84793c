// Of a process of its own: the peak of an earlier test would count.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <vector>

#include "worker/memory/ledger.h"

namespace tessera {
namespace {

MemoryLedger& ledger = MemoryLedger::install();

// Reuse of freed blocks must not make the process larger than the ledger says: a training step's
// pattern of sizes, over and over.
TEST(ProcessMemory, GrowsAsTheLedgerDoes) {
  constexpr int64_t kSlack = 24 << 20;
  ledger.reset_peak();
  const int64_t rss_before = process_memory().rss_bytes;
  const int64_t ledger_before = ledger.snapshot().current_bytes;
  const int64_t sizes[] = {12 << 20, 3 << 20, 40 << 20, 700 << 10, 24 << 20, 90 << 10};
  for (int step = 0; step < 6; ++step) {
    std::vector<at::Tensor> live;
    for (int layer = 0; layer < 3; ++layer) {
      for (int64_t size : sizes) {
        live.push_back(at::full({size}, step, at::kByte));
        at::full({size / 2 + step * 4096}, layer, at::kByte);
      }
    }
  }
  const int64_t grown = process_memory().peak_rss_bytes - rss_before;
  const int64_t expected = ledger.snapshot().peak_bytes - ledger_before;
  EXPECT_LE(grown, expected + kSlack);
  EXPECT_GE(grown, expected - kSlack);
}

}  // namespace
}  // namespace tessera
