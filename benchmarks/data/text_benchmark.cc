// How fast text becomes tokens, and tokens rows.
//
//   text_benchmark TOKENIZER_DIRECTORY TEXT_FILE [google-benchmark flags]
#include <benchmark/benchmark.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "worker/data/packing.h"
#include "worker/data/tokenizer.h"

namespace tessera {
namespace {

void encode(benchmark::State& state, const Tokenizer& tokenizer, const std::string& text) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    encoder.encode(text, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(text.size()) * state.iterations());
  state.counters["tokens"] = static_cast<double>(ids.size());
}

void pack(benchmark::State& state, PackingStrategy strategy) {
  std::mt19937 random(1);
  std::vector<int64_t> lengths(1'000'000);
  for (auto& length : lengths) length = 1 + random() % 1500;
  for (auto _ : state) {
    benchmark::DoNotOptimize(plan_packing(lengths, 1024, strategy).num_rows());
  }
  state.SetItemsProcessed(static_cast<int64_t>(lengths.size()) * state.iterations());
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using tessera::PackingStrategy;
  benchmark::Initialize(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: text_benchmark TOKENIZER_DIRECTORY TEXT_FILE\n");
    return 2;
  }
  const tessera::Tokenizer tokenizer(argv[1]);
  std::ostringstream text;
  text << std::ifstream(argv[2]).rdbuf();
  const std::string contents = text.str();
  const auto unit = benchmark::kMillisecond;
  benchmark::RegisterBenchmark("encode", tessera::encode, std::cref(tokenizer), std::cref(contents))
      ->Unit(unit);
  benchmark::RegisterBenchmark("pack_bfd", tessera::pack, PackingStrategy::kBfd)->Unit(unit);
  benchmark::RegisterBenchmark("pack_bfd_split", tessera::pack, PackingStrategy::kBfdSplit)
      ->Unit(unit);
  benchmark::RegisterBenchmark("pack_wrapped", tessera::pack, PackingStrategy::kWrapped)
      ->Unit(unit);
  benchmark::RunSpecifiedBenchmarks();
}
