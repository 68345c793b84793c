#include "worker/generate/engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "worker/errors.h"
#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/row_product.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

constexpr char kField[] = "generation";  // of errors in requests

// int64, on `device`.
at::Tensor make_longs(const std::vector<int64_t>& values, at::Device device) {
  const OwnerScope owner(Owner::kData);
  if (host_device(device).is_meta()) {
    return at::empty({std::ssize(values)}, at::TensorOptions(device).dtype(at::kLong));
  }
  return at::tensor(values, at::TensorOptions(at::kLong)).to(device);
}

const at::Tensor& embedding_of(DecoderModel& model) {
  return model.layers().front()->parameters().front()->value;
}

std::optional<FinishReason> end_of(const Sequence& sequence) {
  const SamplingParams& sampling = sequence.request().sampling;
  if (std::ranges::count(sampling.stop_tokens, sequence.tokens.back()) > 0)
    return FinishReason::kStopToken;
  if (sequence.of->stop_strings && sequence.of->stop_strings->is_in(sequence.completion()))
    return FinishReason::kStopString;
  if (sequence.num_new() >= sampling.max_new_tokens) return FinishReason::kLength;
  return std::nullopt;
}

// Elsewhere what was run is run again, and by each of those that would share a prompt.
bool is_movable(const Sequence& sequence) {
  const int64_t again = sequence.num_forks > 0 ? sequence.prompt_length() : sequence.num_cached;
  return again <= sequence.request().sampling.max_new_tokens - sequence.num_new();
}

GenerationWeights weights_of(const Engine::Parts& parts, const EngineOptions& options) {
  std::optional<MergedAdapters> merged;
  if (options.merges_adapters) merged.emplace(parts.model, parts.units, parts.group.rank());
  return {parts.units, parts.group, options.weights, std::move(merged)};
}

// With a layer that sees all, all pages are needed.
int64_t widest_window(const ModelConfig& config) {
  int64_t widest = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.window(layer) == 0) return 0;
    widest = std::max(widest, config.window(layer));
  }
  return widest;
}

ScheduleLimits with_window(ScheduleLimits limits, const ModelConfig& config) {
  limits.window = widest_window(config);
  return limits;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Engine::Engine(const Parts& parts, const EngineOptions& options)
    : parts_(parts),
      options_(options),
      device_(embedding_of(parts.model).device()),
      dtype_(embedding_of(parts.model).scalar_type()),
      pool_(options.num_pages),
      cache_(parts.model.config(),
             {.dtype = dtype_, .device = device_, .num_pages = options.num_pages}),
      scheduler_(pool_, with_window(options.limits, parts.model.config())),
      weights_(weights_of(parts, options)) {}

Engine::~Engine() {
  if (is_awake_) weights_.let_go();
}

int64_t Engine::submit(GenerationRequest request) {
  const std::string field = kField;
  check_sampling(request.sampling, field);
  const auto refuse = [&](const char* name, const std::string& rest) {
    throw UserError(field + "." + name, field + "." + name + rest);
  };
  if (request.prompt.empty()) refuse("prompt", " has no token, must have one at least");
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= parts_.model.config().vocab_size)
      refuse("prompt", " has token " + std::to_string(token) + ", must be of the vocabulary");
  }
  if (request.seeds.empty()) refuse("seeds", " is empty, must have one for each sample");
  const int64_t num_begun = std::ssize(request.begun.tokens);
  TORCH_CHECK(num_begun == 0 ||
                  (std::ssize(request.seeds) == 1 && num_begun < request.sampling.max_new_tokens),
              "of a begun completion there is one, and something is left of it");
  const int64_t length = std::ssize(request.prompt) + request.sampling.max_new_tokens;
  if (pages_for(length) > pool_.size()) {
    refuse("max_new_tokens", " is " + std::to_string(request.sampling.max_new_tokens) +
                                 " after a prompt of " + std::to_string(request.prompt.size()) +
                                 " tokens, must fit a cache of " +
                                 std::to_string(pool_.size() * kPageTokens) + " tokens");
  }
  if (!request.sampling.stop_strings.empty() && parts_.tokenizer == nullptr)
    refuse("stop_strings", " is set, and needs a tokenizer");
  auto state = std::make_shared<RequestState>(next_request_++, std::move(request));
  if (!state->request.sampling.stop_strings.empty())
    state->stop_strings.emplace(*parts_.tokenizer, state->request.sampling.stop_strings);
  add_sequences(state);
  return state->number;
}

// A sequence for each group of samples that can run at once; the others of the group fork from it.
void Engine::add_sequences(const std::shared_ptr<RequestState>& state) {
  const int64_t num_samples = std::ssize(state->request.seeds);
  const int64_t most = scheduler_.limits().max_running;
  for (int64_t sample = 0; sample < num_samples; sample += most) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = next_sequence_;
    sequence->of = state;
    sequence->sample = sample;
    sequence->num_forks = std::min(most, num_samples - sample) - 1;
    sequence->tokens = state->request.prompt;
    const BegunCompletion& begun = state->request.begun;
    sequence->tokens.insert(sequence->tokens.end(), begun.tokens.begin(), begun.tokens.end());
    sequence->logprobs = begun.logprobs;
    sequence->sampling_logprobs = begun.sampling_logprobs;
    next_sequence_ += 1 + sequence->num_forks;
    scheduler_.add(std::move(sequence));
  }
}

void Engine::cancel(int64_t request) {
  for (Sequence* sequence : scheduler_.sequences()) {
    if (sequence->of->number != request) continue;
    for (int64_t i = 1; i <= sequence->num_forks; ++i) {
      Sequence fork;
      fork.of = sequence->of;
      fork.sample = sequence->sample + i;
      fork.tokens = sequence->tokens;
      finish(fork, FinishReason::kCancelled);
    }
    finish(*sequence, FinishReason::kCancelled);
    scheduler_.remove(*sequence);
  }
}

void Engine::bound_passes() {
  scheduler_.set_max_pass_tokens(std::max<int64_t>(1, counts_.most_pass_tokens));
}

int64_t Engine::num_unfinished() const {
  int64_t count = 0;
  for (const Sequence* sequence : scheduler_.sequences()) count += 1 + sequence->num_forks;
  return count;
}

int64_t Engine::num_movable() const {
  int64_t count = 0;
  for (const Sequence* sequence : scheduler_.sequences())
    count += is_movable(*sequence) ? 1 + sequence->num_forks : 0;
  return count;
}

std::vector<HandedSample> Engine::hand_over(int64_t count) {
  std::vector<Sequence*> sequences = scheduler_.sequences();
  std::ranges::sort(sequences, std::greater(), &Sequence::id);
  std::vector<HandedSample> handed;
  const auto hand = [&](const Sequence& sequence, int64_t sample) {
    const GenerationRequest& request = sequence.request();
    HandedSample& given = handed.emplace_back(sequence.of->number, sample);
    given.rest = {.prompt = request.prompt,
                  .sampling = request.sampling,
                  .seeds = {request.seeds[sample]},
                  .begun = {.tokens = {sequence.completion().begin(), sequence.completion().end()},
                            .logprobs = sequence.logprobs,
                            .sampling_logprobs = sequence.sampling_logprobs}};
  };
  for (Sequence* sequence : sequences) {
    if (!is_movable(*sequence)) continue;
    for (; sequence->num_forks > 0 && std::ssize(handed) < count; --sequence->num_forks)
      hand(*sequence, sequence->sample + sequence->num_forks);
    if (std::ssize(handed) == count) break;
    hand(*sequence, sequence->sample);
    scheduler_.remove(*sequence);
  }
  return handed;
}

// Gathering block by block takes all ranks, as long as any of them has something to run.
bool Engine::any_rank_has_work() {
  const bool has_work = !scheduler_.is_idle();
  if (options_.weights == WeightMode::kGather || parts_.group.size() == 1) return has_work;
  const OwnerScope owner(Owner::kCommunication);
  const at::Tensor ranks_with_work =
      at::full({1}, has_work ? 1 : 0, at::TensorOptions(device_).dtype(at::kLong));
  parts_.group.all_reduce_sum(ranks_with_work);
  return ranks_with_work.is_meta() ? has_work : ranks_with_work.item<int64_t>() > 0;
}

bool Engine::step() {
  if (!any_rank_has_work()) return false;
  wake();
  run_pass(scheduler_.next());
  return true;
}

void Engine::run_pass(const Pass& pass) {
  const c10::NoGradGuard no_grad;
  const OwnerScope owner(Owner::kActivations);
  const ManyRowsScope products(options_.many_sequences);
  cache_.copy_pages(pass.copies);
  const auto sampled = sample(pass, run_model(pass));
  ++counts_.passes;
  counts_.most_pass_tokens = std::max(counts_.most_pass_tokens, pass.num_tokens);
  counts_.tokens_run += pass.num_tokens;
  counts_.preemptions += pass.num_preempted;
  counts_.pages_copied += std::ssize(pass.copies);
  for (const PassPart& part : pass.parts) part.sequence->num_cached += part.count;
  size_t row = 0;
  for (const PassPart& part : pass.parts) {
    if (part.samples) take_samples(*part.sequence, sampled[row++]);
  }
}

int64_t Engine::least_rows() const {
  return has_row_products(embedding_of(parts_.model)) ? 1 : options_.min_rows;
}

// The hidden states of the pass's tokens.
at::Tensor Engine::run_model(const Pass& pass) {
  std::vector<int64_t> tokens, positions, lengths;
  std::vector<PagedSpan> spans;
  for (const PassPart& part : pass.parts) {
    const Sequence& sequence = *part.sequence;
    const int64_t row = std::ssize(tokens);
    spans.push_back({row, part.count, part.begin + part.count, sequence.pages});
    for (int64_t t = part.begin; t < part.begin + part.count; ++t) {
      tokens.push_back(sequence.tokens[t]);
      positions.push_back(t);
      // As transformers has it: the prompt at once, then token by token.
      lengths.push_back(std::max(sequence.prompt_length(), t + 1));
    }
  }
  // An idle rank's pass stays empty: it only takes part in gathering weights.
  while (!tokens.empty() && std::ssize(tokens) < least_rows()) {
    tokens.push_back(0);
    positions.push_back(0);
    lengths.push_back(1);
  }
  cache_.begin_pass(std::move(spans));
  return parts_.model.extend(
      {make_longs(tokens, device_), make_longs(positions, device_), std::move(lengths)}, cache_,
      options_.adapters && !options_.merges_adapters);
}

// A list for each part that samples. With weights gathered block by block the head's are gathered
// in each pass, as its ranks cannot know of each other whether they need them.
std::vector<std::vector<SampledToken>> Engine::sample(const Pass& pass,
                                                      const at::Tensor& hidden_TD) {
  std::vector<int64_t> rows;
  std::vector<RowDraws> draws;
  int64_t next_row = 0;
  for (const PassPart& part : pass.parts) {
    next_row += part.count;
    if (!part.samples) continue;
    const Sequence& sequence = *part.sequence;
    const GenerationRequest& request = sequence.request();
    rows.push_back(next_row - 1);
    draws.push_back(
        {.sampling = &request.sampling,
         .tokens = sequence.tokens,
         .seeds = std::span(request.seeds).subspan(sequence.sample, 1 + sequence.num_forks),
         .index = sequence.num_new()});
  }
  while (!rows.empty() && std::ssize(rows) < least_rows()) rows.push_back(rows.front());
  std::vector<std::vector<SampledToken>> sampled;
  if (rows.empty() && options_.weights == WeightMode::kGather) return sampled;
  const at::Tensor hidden_SD = hidden_TD.index_select(0, make_longs(rows, device_));
  parts_.model.read_logits(hidden_SD, [&](int64_t row, const at::Tensor& logits_CV) {
    const int64_t end = std::min(row + logits_CV.size(0), std::ssize(draws));
    if (row >= end) return;
    for (auto& of_row : sample_rows(logits_CV, {draws.begin() + row, draws.begin() + end}))
      sampled.push_back(std::move(of_row));
  });
  return sampled;
}

// The first one is the sequence's own, the others are those of the samples that begin here.
void Engine::take_samples(Sequence& sequence, const std::vector<SampledToken>& sampled) {
  for (int64_t i = 1; i < std::ssize(sampled); ++i) {
    auto fork = std::make_unique<Sequence>();
    fork->id = sequence.id + i;
    fork->of = sequence.of;
    fork->sample = sequence.sample + i;
    fork->tokens = sequence.tokens;
    append(*fork, sampled[i]);
    if (const auto reason = end_of(*fork)) {
      finish(*fork, *reason);
    } else {
      scheduler_.add_fork(sequence, std::move(fork));
    }
  }
  sequence.num_forks = 0;
  append(sequence, sampled.front());
  if (const auto reason = end_of(sequence)) {
    finish(sequence, *reason);
    scheduler_.remove(sequence);
  }
}

void Engine::append(Sequence& sequence, const SampledToken& sampled) {
  sequence.tokens.push_back(sampled.token);
  sequence.logprobs.push_back(sampled.logprob);
  sequence.sampling_logprobs.push_back(sampled.sampling_logprob);
  ++counts_.tokens_sampled;
  options_.on_token({sequence.of->number, sequence.sample, sampled});
}

void Engine::finish(const Sequence& sequence, FinishReason reason) {
  const std::span<const int32_t> tokens = sequence.completion();
  finished_.push_back({.request = sequence.of->number,
                       .sample = sequence.sample,
                       .tokens = {tokens.begin(), tokens.end()},
                       .logprobs = sequence.logprobs,
                       .sampling_logprobs = sequence.sampling_logprobs,
                       .finish = reason});
}

void Engine::rehearse_pass(const AlikeSequences& alike) {
  const c10::NoGradGuard no_grad;
  const OwnerScope owner(Owner::kActivations);
  const int64_t length = alike.begin + alike.count;
  auto state = std::make_shared<RequestState>();
  state->request.prompt.resize(static_cast<size_t>(length));
  std::vector<Sequence> sequences(static_cast<size_t>(alike.num_sequences));
  Pass pass;
  for (Sequence& sequence : sequences) {
    sequence.of = state;
    sequence.tokens.resize(static_cast<size_t>(length));
    sequence.pages.resize(static_cast<size_t>(pages_for(length)));
    pass.parts.push_back({&sequence, alike.begin, alike.count, /*samples=*/true});
    pass.num_tokens += alike.count;
  }
  sample(pass, run_model(pass));
}

std::vector<Completion> Engine::take_finished() {
  std::vector<Completion> taken = std::move(finished_);
  finished_.clear();
  std::ranges::sort(taken, {}, [](const Completion& c) { return std::pair(c.request, c.sample); });
  return taken;
}

std::vector<Completion> Engine::generate(const std::vector<GenerationRequest>& requests) {
  const int64_t first = next_request_;
  for (const GenerationRequest& request : requests) submit(request);
  wake();
  while (step()) {
  }
  std::vector<Completion> all = take_finished();
  const auto own =
      std::ranges::find_if(all, [&](const Completion& c) { return c.request >= first; });
  // What was submitted before is for whoever did that.
  finished_.assign(all.begin(), own);
  return {own, all.end()};
}

void Engine::wake() {
  if (is_awake_) return;
  const auto begin = std::chrono::steady_clock::now();
  EngineTransition transition{.is_wake = true, .level = slept_};
  const bool has_cache = cache_.is_allocated();
  transition.kv_cache_bytes = has_cache ? 0 : cache_.bytes();
  transition.weight_bytes = weights_.held_bytes();
  transition.host_bytes = host_bytes_;
  weights_.wake();
  if (cache_.is_on_host()) {
    cache_.move_back();
  } else if (!has_cache) {
    cache_.allocate();
  }
  host_bytes_ = 0;
  is_awake_ = true;
  transition.seconds = seconds_since(begin);
  options_.on_transition(transition);
}

void Engine::fall_asleep(SleepLevel level) {
  if (!is_awake_) return;
  const auto begin = std::chrono::steady_clock::now();
  EngineTransition transition{.is_wake = false, .level = level};
  transition.kv_cache_bytes = level == SleepLevel::kKeep ? 0 : cache_.bytes();
  transition.weight_bytes = weights_.held_bytes();
  weights_.let_go();
  const std::vector<int32_t> held = pool_.held();
  if (level == SleepLevel::kOffload && !held.empty()) {
    cache_.move_to_host(held);
    host_bytes_ = std::ssize(held) * cache_.page_bytes();
  } else if (level != SleepLevel::kKeep) {
    scheduler_.preempt_all();
    cache_.drop();
  }
  transition.host_bytes = host_bytes_;
  scheduler_.set_max_pass_tokens(options_.limits.max_pass_tokens);
  slept_ = level;
  is_awake_ = false;
  transition.seconds = seconds_since(begin);
  options_.on_transition(transition);
}

}  // namespace tessera
