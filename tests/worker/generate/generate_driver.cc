// Generates completions as a job's rank would, for compare_generation.py.
//
// Each line of standard input is a JSON object, answered by one on standard output:
//   spec       of the job: model, memory, peft ... as a job file has them
//   ranks      that share the weights, as threads
//   mode       gather or layerwise
//   pages, pass_tokens, running: of the engine; left out: enough
//   adapters   false: without them; "merged": added to the weights
//   requests   [{prompt, rank, seeds, and fields of SamplingParams}]
//   score      whether a training forward scores what was generated (one rank only)
// Answers: {"completions": [[{tokens, logprobs, sampling_logprobs, finish, and of a score
// trained_logprobs and most_likely} of each sample] of each request], "counts": of rank 0, and the
// seconds it took}
#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <google/protobuf/util/json_util.h>

#include <chrono>
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

// What a training forward says of the tokens of a completion.
struct TrainedScores {
  std::vector<float> logprobs;
  std::vector<bool> most_likely;  // whether each is the most likely one
};

// Of all completions by one forward, each behind its prompt a document.
std::vector<TrainedScores> trained_scores(DecoderModel& model,
                                          const std::vector<GenerationRequest>& requests,
                                          const std::vector<Completion>& made) {
  std::vector<int64_t> tokens, positions, labels, label_rows;
  Batch batch;
  batch.documents.cu_seqlens = {0};
  for (const Completion& completion : made) {
    const std::vector<int32_t>& prompt = requests[completion.request].prompt;
    const int64_t begin = std::ssize(tokens);
    tokens.insert(tokens.end(), prompt.begin(), prompt.end());
    tokens.insert(tokens.end(), completion.tokens.begin(), completion.tokens.end());
    const int64_t end = std::ssize(tokens);
    labels.resize(end, kIgnoredLabel);
    for (int64_t t = begin; t < end; ++t) positions.push_back(t - begin);
    for (int64_t t = begin + std::ssize(prompt) - 1; t + 1 < end; ++t) {
      labels[t] = tokens[t + 1];
      label_rows.push_back(t);
    }
    batch.documents.cu_seqlens.push_back(end);
  }
  batch.tokens_T = at::tensor(tokens, at::kLong);
  batch.labels_T = at::tensor(labels, at::kLong);
  batch.label_rows_L = at::tensor(label_rows, at::kLong);
  batch.documents.positions_T = at::tensor(positions, at::kLong);
  batch.num_tokens = std::ssize(tokens);
  const c10::NoGradGuard no_grad;
  const HeadOutput out = model.head(model.forward(batch), batch);
  const float* logprobs = out.logprobs_T.const_data_ptr<float>();
  const float* correct = out.correct_T.const_data_ptr<float>();
  std::vector<TrainedScores> scores(made.size());
  for (size_t i = 0, label = 0; i < made.size(); ++i) {
    for (size_t token = 0; token < made[i].tokens.size(); ++token) {
      const int64_t row = label_rows[label++];
      scores[i].logprobs.push_back(logprobs[row]);
      scores[i].most_likely.push_back(correct[row] == 1);
    }
  }
  return scores;
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
  const json adapters = job.value("adapters", json(true));
  options.adapters = adapters != false;
  options.merges_adapters = adapters == "merged";
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

  std::vector<TrainedScores> scores;
  if (job.value("score", false)) scores = trained_scores(*trainable.model, requests, made);

  const std::lock_guard lock(shared.mutex);
  for (size_t i = 0; i < made.size(); ++i) {
    json described = describe(made[i]);
    if (!scores.empty()) {
      described["trained_logprobs"] = scores[i].logprobs;
      described["most_likely"] = scores[i].most_likely;
    }
    shared.completions[numbers[made[i].request]].push_back(described);
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
  std::cout << json{{"completions", shared.completions}, {"counts", shared.counts}} << std::endl;
}

}  // namespace
}  // namespace tessera

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) tessera::run(nlohmann::json::parse(line));
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
