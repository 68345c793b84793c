// What the ledger adds to an allocation and its release.
//
//   ledger_benchmark --benchmark_enable_random_interleaving --benchmark_repetitions=9
//
// Events of a step (a trace's samples, or half of it in pairs) times this is the ledger's share.
#include <ATen/ops/empty.h>
#include <benchmark/benchmark.h>

#include "worker/memory/ledger.h"

namespace tessera {
namespace {

MemoryLedger& ledger = MemoryLedger::install();

// A step's pattern: a few dozen blocks, owners and phases in turn, each new peak followed by a
// release.
constexpr int kPlaces = 64;

Attribution place(int i) {
  return {.owner = static_cast<Owner>(i % kNumOwners),
          .phase = static_cast<Phase>(i % kNumPhases),
          .block = static_cast<BlockId>(i)};
}

void charge_and_release(benchmark::State& state) {
  int i = 0;
  for (auto _ : state) {
    const Attribution who = place(i++ % kPlaces);
    ledger.charge(who, 4096);
    ledger.release(who, 4096);
  }
}
BENCHMARK(charge_and_release);

void charge_and_release_recorded(benchmark::State& state) {
  int i = 0;
  ledger.start_recording();
  for (auto _ : state) {
    const Attribution who = place(i++ % kPlaces);
    ledger.charge(who, 4096);
    ledger.release(who, 4096);
    if (i % (kMaxRecordedEvents / 2) != 0) continue;
    state.PauseTiming();
    ledger.stop_recording();
    ledger.start_recording();
    state.ResumeTiming();
  }
  ledger.stop_recording();
}
BENCHMARK(charge_and_release_recorded);

void scopes(benchmark::State& state) {
  for (auto _ : state) {
    const OwnerScope owner(Owner::kHead);
    const BlockScope block(3);
    const PhaseScope phase(Phase::kForward);
    benchmark::DoNotOptimize(current_attribution());
  }
}
BENCHMARK(scopes);

void empty_tensor(benchmark::State& state) {
  const OwnerScope owner(Owner::kActivations);
  for (auto _ : state) benchmark::DoNotOptimize(at::empty({state.range(0)}, at::kByte));
}
BENCHMARK(empty_tensor)->Arg(4096)->Arg(1 << 20);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
