// What the flight recorder adds to an exchange, and what an answer takes.
//
//   flight_recorder_benchmark --benchmark_enable_random_interleaving --benchmark_repetitions=9
//
// Exchanges of a step (`tessera collectives` counts them) times this is the recorder's share.
#include <benchmark/benchmark.h>

#include "worker/parallel/flight_recorder.h"

namespace tessera {
namespace {

// One that is started and waited for later.
void exchange(benchmark::State& state) {
  FlightRecorder recorder;
  int64_t sequence = 0;
  for (auto _ : state) {
    const int64_t number = recorder.issue("dp_shard", ++sequence, "all_gather", 4096);
    recorder.wait(number);
    recorder.finish(number);
  }
}
BENCHMARK(exchange);

void record(benchmark::State& state) {
  FlightRecorder recorder;
  for (int64_t i = 1; i <= FlightRecorder::kMaxKept; ++i)
    recorder.issue("dp_shard", i, "all_gather", 4096);
  for (auto _ : state) benchmark::DoNotOptimize(recorder.record());
}
BENCHMARK(record);

}  // namespace
}  // namespace tessera

BENCHMARK_MAIN();
