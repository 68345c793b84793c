// Times the generation engine on one rank, without what starts it.
//
//   engine_benchmark WORK.json
//
// WORK has the fields model, prompts (lists of tokens), batches (so many of the first prompts at
// once), new_tokens and threads; and may have device (cpu, cuda:0; default: cpu) and dtype
// (default: float32). A line for each batch is written, as benchmarks/generation/peer.py does:
// {"generation": {batch, seconds, cpu_seconds, tokens of each completion}}.
#include <ATen/Parallel.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "proto/spec/rules.h"
#include "worker/generate/engine.h"
#include "worker/memory/device_memory.h"
#include "worker/memory/ledger.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/plan.h"

namespace tessera {
namespace {

using nlohmann::json;

// More are taken for many.
constexpr int64_t kFewSequences = 8;

v1::JobSpec spec_of(const json& work) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path(work.at("model"));
  spec.mutable_model()->set_dtype(work.value("dtype", "float32"));
  spec::fill_defaults(spec);
  return spec;
}

// The first `count` prompts, greedily and to their full length.
std::vector<GenerationRequest> requests_of(const json& work, int64_t count, int64_t new_tokens) {
  std::vector<GenerationRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests.emplace_back();
    request.prompt = work.at("prompts").at(i).get<std::vector<int32_t>>();
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = new_tokens;
  }
  return requests;
}

void run(const json& work, MemoryLedger& ledger) {
  at::set_num_threads(work.at("threads"));
  const at::Device device(work.value("device", "cpu"));
  use_device(ledger, device, /*limit_bytes=*/0);
  const v1::JobSpec spec = spec_of(work);
  const ModelConfig config = read_model_config(spec.model().path());
  const auto group = make_single_collectives();
  const WeightFiles weights = WeightFiles::open(spec.model().path());
  TrainableModel trainable = build_model(spec, config, *group, device);
  load_weights(spec, trainable, weights, /*rank=*/0);
  std::vector<ShardedUnit*> units;
  for (const auto& unit : trainable.units) units.push_back(unit.get());

  const int64_t new_tokens = work.at("new_tokens");
  for (const int64_t batch : work.at("batches")) {
    const auto requests = requests_of(work, batch, new_tokens);
    EngineOptions options;
    options.many_sequences = batch > kFewSequences;
    for (const GenerationRequest& request : requests)
      options.num_pages += pages_for(std::ssize(request.prompt) + new_tokens);
    Engine engine({*trainable.model, units, *group}, options);
    engine.generate(requests_of(work, batch, /*new_tokens=*/2));  // warms up
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t cpu_begin = std::clock();
    const std::vector<Completion> made = engine.generate(requests);
    const double cpu_seconds = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    json tokens = json::array();
    for (const Completion& completion : made) tokens.push_back(completion.tokens);
    const json said = {{"batch", batch},
                       {"seconds", spent.count()},
                       {"cpu_seconds", cpu_seconds},
                       {"tokens", tokens}};
    std::cout << json{{"generation", said}} << std::endl;
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "engine_benchmark WORK.json\n";
    return 2;
  }
  tessera::MemoryLedger& ledger = tessera::MemoryLedger::install();
  try {
    std::ifstream work(argv[1]);
    tessera::run(nlohmann::json::parse(work), ledger);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
