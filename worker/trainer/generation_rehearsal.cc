#include "worker/trainer/generation_rehearsal.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "proto/spec/online_relations.h"
#include "proto/spec/reward_relations.h"
#include "worker/generate/deal.h"
#include "worker/kernels/cpu_kernels.h"
#include "worker/parallel/byte_exchange.h"

namespace tessera {
namespace {

const at::Device kRehearsed(at::kMeta);
// Of passes with prompts so many are run: those that follow are like these.
constexpr int64_t kMostPromptPasses = 64;
// What ranks send of a completion beside its tokens, and of each token.
constexpr int64_t kHeadBytes = 4 * sizeof(int64_t);
constexpr int64_t kTokenBytes = sizeof(int32_t) + sizeof(float);

std::vector<int64_t> longest_prompts(const RolloutDataset& rollouts, const GenerationWork& work) {
  std::vector<int64_t> lengths;
  for (int64_t number = 0; std::ssize(lengths) < work.num_prompts; ++number) {
    if (number == rollouts.num_generations()) break;
    const Generation generation = rollouts.generation(rollouts.begin_of(number));
    for (int64_t i = 0; i < generation.size(); i += work.samples)
      lengths.push_back(std::ssize(generation.rollouts[i].prompt));
  }
  return lengths;
}

WorkCount scaled(const WorkCount& count, double by) {
  const auto times = [by](int64_t value) { return std::llround(static_cast<double>(value) * by); };
  return {.flops = count.flops * by,
          .memory_bytes = times(count.memory_bytes),
          .cpu_bytes = times(count.cpu_bytes),
          .link_bytes = times(count.link_bytes),
          .host_bytes = times(count.host_bytes),
          .disk_bytes = times(count.disk_bytes),
          .num_operators = times(count.num_operators)};
}

}  // namespace

GenerationRehearsal::GenerationRehearsal(const Parts& parts)
    : spec_(parts.spec),
      mesh_(parts.mesh),
      judged_(parts.judged),
      reward_models_(parts.reward_models),
      sleep_(sleep_of(parts.spec)),
      work_(generation_work(parts.spec, /*longest_prompt=*/1)) {
  deal(longest_prompts(parts.rollouts, work_));
  const ModelConfig& config = parts.policy.model->config();
  make_engine(parts.policy, engine_options(spec_, config, work_));
}

GenerationRehearsal::GenerationRehearsal(const Parts& parts, const GenerationRehearsal& training)
    : spec_(parts.spec),
      mesh_(parts.mesh),
      judged_(parts.judged),
      reward_models_(parts.reward_models),
      sleep_(SleepLevel::kDrop),
      work_(evaluation_work(parts.spec,
                            parts.rollouts.size() / parts.rollouts.options().num_generations,
                            /*longest_prompt=*/1)) {
  deal(longest_prompts(parts.rollouts, work_));
  const ModelConfig& config = parts.policy.model->config();
  make_engine(parts.policy, engine_options_beside(training.options_, spec_, config, work_));
}

// Among the ranks.
void GenerationRehearsal::deal(const std::vector<int64_t>& lengths) {
  work_.longest_prompt = lengths.front();
  set_text_lengths(lengths);
  const auto dealt = deal_samples(lengths, work_.samples, mesh_.world.size());
  for (const DealtSamples& part : dealt[mesh_.world.rank()]) {
    prompt_lengths_.push_back(lengths[part.request]);
    samples_.push_back(part.count);
  }
}

void GenerationRehearsal::set_text_lengths(const std::vector<int64_t>& lengths) {
  const int64_t longest = spec::longest_completion(spec_.method());
  size_t model = 0;
  for (const v1::RewardFunc& func : spec_.reward_funcs()) {
    if (!func.has_model()) continue;
    std::vector<int64_t>& texts = text_lengths_.emplace_back();
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t length = judged_.empty() ? lengths[i] + longest : judged_[model].of(i, longest);
      texts.insert(texts.end(), static_cast<size_t>(work_.samples), length);
    }
    ++model;
  }
}

void GenerationRehearsal::make_engine(TrainableModel& policy, const EngineOptions& options) {
  options_ = options;
  const CacheSizes cache = cache_sizes(spec_, policy.model->config(), work_);
  is_crowded_ = options.num_pages < cache.wanted / cache.page;
  std::vector<ShardedUnit*> units;
  for (const auto& unit : policy.units) units.push_back(unit.get());
  engine_.emplace(Engine::Parts{*policy.model, units, mesh_.shard}, options_);
}

int64_t GenerationRehearsal::running() const {
  const int64_t all = std::reduce(samples_.begin(), samples_.end());
  return std::min<int64_t>(all, spec_.generation().max_num_seqs());
}

void GenerationRehearsal::run() {
  const PhaseScope phase(Phase::kGenerate);
  run_passes();
  engine_->fall_asleep(sleep_);
  const int64_t all = work_.num_prompts * work_.samples, ranks = work_.num_ranks;
  const int64_t completion = spec::longest_completion(spec_.method());
  rehearse_all_gather_bytes(mesh_.world, kRehearsed,
                            (all + ranks - 1) / ranks * (kHeadBytes + kTokenBytes * completion));
  judge();
}

void GenerationRehearsal::judge() {
  if (reward_models_ != nullptr) reward_models_->rehearse(text_lengths_);
}

void GenerationRehearsal::run_passes() {
  engine_->wake();
  std::vector<int64_t> requests;
  int64_t prompt_tokens = 0;
  SamplingParams sampling = sampling_of(spec_);
  sampling.stop_strings.clear();
  for (size_t i = 0; i < prompt_lengths_.size(); ++i) {
    prompt_tokens += prompt_lengths_[i];
    requests.push_back(
        engine_->submit({.prompt = std::vector<int32_t>(static_cast<size_t>(prompt_lengths_[i])),
                         .sampling = sampling,
                         .seeds = std::vector<uint64_t>(static_cast<size_t>(samples_[i]))}));
  }
  // Sequences that run already take up to half of a pass or more.
  const int64_t least = std::max<int64_t>(1, spec_.generation().max_num_batched_tokens() / 2);
  const int64_t passes = std::min(kMostPromptPasses, 2 + prompt_tokens / least);
  for (int64_t pass = 0; pass < passes && engine_->step(); ++pass) {
  }
  for (const int64_t request : requests) engine_->cancel(request);
  engine_->take_finished();
  const int64_t last = work_.longest_prompt + spec::longest_completion(spec_.method()) - 1;
  engine_->rehearse_pass({.num_sequences = running(), .begin = last - 1, .count = 1});
  if (is_crowded_) rehearse_rerun(last);
}

// Where pages run out, sequences are run again up to where they were: as many tokens as a pass has
// room for, or the cache.
void GenerationRehearsal::rehearse_rerun(int64_t longest) {
  const int64_t room = std::min<int64_t>(spec_.generation().max_num_batched_tokens(),
                                         options_.num_pages * kPageTokens);
  const int64_t count = std::min(longest, room);
  const int64_t sequences = std::clamp<int64_t>(room / count, 1, running());
  engine_->rehearse_pass({.num_sequences = sequences, .begin = 0, .count = count});
}

WorkCount GenerationRehearsal::cost() {
  const PhaseScope phase(Phase::kGenerate);
  engine_->wake();
  const double prompts = static_cast<double>(std::max<int64_t>(1, std::ssize(prompt_lengths_)));
  const auto prompt_tokens =
      static_cast<double>(std::reduce(prompt_lengths_.begin(), prompt_lengths_.end()));
  const auto prompt = std::max<int64_t>(1, std::llround(prompt_tokens / prompts));
  WorkCount of_pass, of_token, total;
  // As many prompts as a pass has room for, or a part of one from the middle.
  const int64_t most = spec_.generation().max_num_batched_tokens();
  const int64_t part = std::min(prompt, most);
  const int64_t at_once = std::clamp<int64_t>(most / part, 1, std::llround(prompts));
  {
    const WorkScope scope(of_pass);
    engine_->rehearse_pass({at_once, (prompt - part) / 2, part});
  }
  total.add(scaled(of_pass, prompt_tokens / static_cast<double>(at_once * part)), 1);
  // What a token costs grows evenly with those before it.
  const int64_t length = spec::longest_completion(spec_.method());
  {
    const WorkScope scope(of_token);
    engine_->rehearse_pass({running(), prompt + length / 2, 1});
  }
  const auto all = static_cast<double>(std::reduce(samples_.begin(), samples_.end()));
  const double waves = all / static_cast<double>(std::max<int64_t>(1, running()));
  total.add(scaled(of_token, waves * static_cast<double>(length)), 1);
  engine_->fall_asleep(sleep_);
  {
    const WorkScope scope(total);
    judge();
  }
  return total;
}

WorkCount GenerationRehearsal::cost_of_step(double share) {
  const spec::GenerationPlan plan = spec::generation_plan(spec_);
  const double of_generation = static_cast<double>(plan.steps_per_generation * plan.num_passes);
  const double microbatches = spec_.training().gradient_accumulation_steps();
  const double at_once = std::max(1., std::ceil(microbatches / of_generation));
  return scaled(cost(), share * microbatches / of_generation / at_once);
}

}  // namespace tessera
