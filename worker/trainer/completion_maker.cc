#include "worker/trainer/completion_maker.h"

#include <cstring>
#include <span>

#include "worker/generate/end_tokens.h"
#include "worker/parallel/byte_exchange.h"

namespace tessera {
namespace {

// Ranks hear of each other after so many passes, which take seconds.
constexpr int64_t kPassesBetweenSigns = 64;

template <typename Value>
void append(std::string& bytes, std::span<const Value> values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

template <typename Value>
std::vector<Value> take(std::string_view& bytes, size_t count) {
  std::vector<Value> values(count);
  std::memcpy(values.data(), bytes.data(), count * sizeof(Value));
  bytes.remove_prefix(count * sizeof(Value));
  return values;
}

std::string packed(const std::vector<Completion>& completions) {
  std::string bytes;
  for (const Completion& completion : completions) {
    const int64_t head[] = {std::ssize(completion.tokens),
                            completion.finish == FinishReason::kLength ? 1 : 0};
    append(bytes, std::span<const int64_t>(head));
    append(bytes, std::span<const int32_t>(completion.tokens));
    append(bytes, std::span<const float>(completion.sampling_logprobs));
  }
  return bytes;
}

MadeCompletion unpack_next(std::string_view& bytes) {
  const std::vector<int64_t> head = take<int64_t>(bytes, 2);
  MadeCompletion made{.truncated = head[1] != 0};
  made.tokens = take<int32_t>(bytes, static_cast<size_t>(head[0]));
  made.sampling_logprobs = take<float>(bytes, static_cast<size_t>(head[0]));
  return made;
}

}  // namespace

CompletionMaker::CompletionMaker(const Parts& parts, EngineOptions options)
    : parts_(parts),
      sampling_(sampling_of(parts.spec)),
      patience_(parts.mesh.world, parts.device, parts.alive) {
  sampling_.stop_tokens = end_tokens(parts.spec.model().path(), parts.tokenizer);
  check_sampling(sampling_, "generation");
  options.on_transition = parts.on_transition;
  std::vector<ShardedUnit*> units;
  for (const auto& unit : parts.policy.units) units.push_back(unit.get());
  engine_ = std::make_unique<Engine>(
      Engine::Parts{*parts.policy.model, units, parts.mesh.shard, &parts.tokenizer}, options);
}

void CompletionMaker::submit(const std::vector<PromptToComplete>& prompts,
                             const std::vector<DealtSamples>& dealt) {
  for (const DealtSamples& part : dealt) {
    const PromptToComplete& prompt = prompts[part.request];
    const auto begin = prompt.seeds.begin() + part.first;
    engine_->submit(
        {.prompt = prompt.tokens, .sampling = sampling_, .seeds = {begin, begin + part.count}});
  }
}

// Passes are counted, not seconds: ranks that gather weights block by block go in step, and must
// turn to each other at the same place.
void CompletionMaker::run() {
  engine_->wake();
  for (int64_t pass = 1; engine_->step(); ++pass) {
    parts_.alive();
    if (pass % kPassesBetweenSigns == 0) patience_.still_working();
  }
  patience_.wait_for_all();
}

std::vector<std::vector<MadeCompletion>> CompletionMaker::make(
    const std::vector<PromptToComplete>& prompts) {
  std::vector<int64_t> lengths;
  for (const PromptToComplete& prompt : prompts) lengths.push_back(std::ssize(prompt.tokens));
  const int64_t samples = std::ssize(prompts.front().seeds);
  Collectives& world = parts_.mesh.world;
  const auto dealt = deal_samples(lengths, samples, world.size());
  submit(prompts, dealt[world.rank()]);
  run();
  engine_->fall_asleep(parts_.sleep);
  const std::vector<std::string> of_ranks =
      all_gather_bytes(world, parts_.device, packed(engine_->take_finished()));
  std::vector<std::vector<MadeCompletion>> made(
      prompts.size(), std::vector<MadeCompletion>(static_cast<size_t>(samples)));
  for (size_t rank = 0; rank < dealt.size(); ++rank) {
    std::string_view bytes = of_ranks[rank];
    for (const DealtSamples& part : dealt[rank]) {
      for (int64_t i = 0; i < part.count; ++i)
        made[part.request][part.first + i] = unpack_next(bytes);
    }
  }
  return made;
}

}  // namespace tessera
