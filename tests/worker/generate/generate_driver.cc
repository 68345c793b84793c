// Generates completions as a job's rank would, for compare_generation.py.
//
//   generate_driver JOBS
//
// Each line of JOBS is a JSON object; one is written to standard output for each:
//   spec       of the job: model, memory, peft ... as a job file has them
//   ranks      that share the weights, as threads
//   mode       gather or layerwise
//   pages, pass_tokens, running: of the engine; left out: enough
//   adapters   false: without them
//   requests   [{prompt, rank, seeds, and fields of SamplingParams}]
//   score      whether a training forward scores what was generated (one rank only)
// Answers: {"completions": [[{tokens, logprobs, sampling_logprobs, finish, and of a score
// trained_logprobs and most_likely} of each sample] of each request], "counts": of rank 0, and the
// seconds it took}
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "proto/spec/rules.h"
#include "tests/support/ranks.h"
#include "worker/generate/engine.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/plan.h"

namespace tessera {
namespace {

using nlohmann::json;

v1::JobSpec read_spec(const json& fields) {
  v1::JobSpec spec;
  const auto status = google::protobuf::util::JsonStringToMessage(fields.dump(), &spec);
  if (!status.ok()) throw std::runtime_error(status.ToString());
  spec.mutable_method()->mutable_sft();
  spec::fill_defaults(spec);
  return spec;
}

GenerationRequest read_request(const json& fields) {
  GenerationRequest request;
  request.prompt = fields.at("prompt").get<std::vector<int32_t>>();
  request.seeds = fields.value("seeds", request.seeds);
  SamplingParams& s = request.sampling;
  s.temperature = fields.value("temperature", s.temperature);
  s.top_k = fields.value("top_k", s.top_k);
  s.top_p = fields.value("top_p", s.top_p);
  s.min_p = fields.value("min_p", s.min_p);
  s.repetition_penalty = fields.value("repetition_penalty", s.repetition_penalty);
  s.max_new_tokens = fields.value("max_new_tokens", s.max_new_tokens);
  s.stop_tokens = fields.value("stop_tokens", s.stop_tokens);
  s.stop_strings = fields.value("stop_strings", s.stop_strings);
  return request;
}

// Of a prompt and its completion by a training forward: log-probabilities, and whether each token
// is the most likely one.
json trained_scores(DecoderModel& model, const std::vector<int32_t>& prompt,
                    const Completion& completion) {
  std::vector<int64_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), completion.tokens.begin(), completion.tokens.end());
  const int64_t length = std::ssize(tokens), first = std::ssize(prompt) - 1;
  Batch batch;
  batch.tokens_T = at::tensor(tokens, at::kLong);
  batch.documents.cu_seqlens = {0, length};
  batch.documents.positions_T = at::arange(length, at::kLong);
  batch.labels_T = at::full_like(batch.tokens_T, kIgnoredLabel);
  batch.labels_T.narrow(0, first, length - 1 - first)
      .copy_(batch.tokens_T.narrow(0, first + 1, length - 1 - first));
  batch.label_rows_L = at::arange(first, length - 1, at::kLong);
  batch.num_tokens = length;
  const c10::NoGradGuard no_grad;
  const HeadOutput out = model.head(model.forward(batch), batch);
  json logprobs = json::array(), most_likely = json::array();
  for (int64_t t = first; t < length - 1; ++t) {
    logprobs.push_back(out.logprobs_T[t].item<float>());
    most_likely.push_back(out.correct_T[t].item<float>() == 1);
  }
  return {logprobs, most_likely};
}

json describe(const Completion& completion) {
  return {{"tokens", completion.tokens},
          {"logprobs", completion.logprobs},
          {"sampling_logprobs", completion.sampling_logprobs},
          {"finish", finish_name(completion.finish)}};
}

EngineOptions engine_options(const json& job) {
  EngineOptions options;
  options.num_pages = job.value("pages", 4096);
  options.limits.max_pass_tokens = job.value("pass_tokens", options.limits.max_pass_tokens);
  options.limits.max_running = job.value("running", options.limits.max_running);
  options.weights = job.at("mode") == "layerwise" ? WeightMode::kLayerwise : WeightMode::kGather;
  options.adapters = job.value("adapters", true);
  return options;
}

struct Shared {
  std::mutex mutex;
  json completions, counts;  // guarded by mutex
};

void run_rank(const json& job, Collectives& group, Shared& shared) {
  at::set_num_threads(1);
  const v1::JobSpec spec = read_spec(job.at("spec"));
  const WeightFiles weights = WeightFiles::open(spec.model().path());
  TrainableModel trainable =
      build_model(spec, read_model_config(spec.model().path()), group, at::kCPU);
  load_weights(spec, trainable, weights, group.rank());
  std::vector<ShardedUnit*> units;
  for (const auto& unit : trainable.units) units.push_back(unit.get());
  std::unique_ptr<Tokenizer> tokenizer;
  if (!spec.model().tokenizer().empty())
    tokenizer = std::make_unique<Tokenizer>(spec.model().tokenizer());

  std::vector<GenerationRequest> requests;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < job.at("requests").size(); ++i) {
    const json& fields = job.at("requests")[i];
    if (fields.value("rank", 0) != group.rank()) continue;
    requests.push_back(read_request(fields));
    numbers.push_back(i);
  }
  Engine engine({*trainable.model, units, group, tokenizer.get()}, engine_options(job));
  engine.wake();
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Completion> made = engine.generate(requests);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  const EngineCounts counts = engine.counts();
  engine.fall_asleep(SleepLevel::kDrop);

  const std::lock_guard lock(shared.mutex);
  for (const Completion& completion : made) {
    json described = describe(completion);
    if (job.value("score", false)) {
      const json scores =
          trained_scores(*trainable.model, requests[completion.request].prompt, completion);
      described["trained_logprobs"] = scores[0];
      described["most_likely"] = scores[1];
    }
    shared.completions[numbers[completion.request]].push_back(described);
  }
  if (group.rank() == 0) {
    shared.counts = {{"seconds", spent.count()},          {"passes", counts.passes},
                     {"tokens_run", counts.tokens_run},   {"tokens_sampled", counts.tokens_sampled},
                     {"preemptions", counts.preemptions}, {"pages_copied", counts.pages_copied}};
  }
}

void run(const json& job) {
  Shared shared;
  shared.completions = std::vector<json>(job.at("requests").size(), json::array());
  testing::run_ranks(testing::Backend::kThreads, job.value("ranks", 1),
                     [&](Collectives& group) { run_rank(job, group, shared); });
  std::cout << json{{"completions", shared.completions}, {"counts", shared.counts}} << "\n";
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "generate_driver JOBS\n";
    return 2;
  }
  std::ifstream jobs(argv[1]);
  try {
    for (std::string line; std::getline(jobs, line);) tessera::run(nlohmann::json::parse(line));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
