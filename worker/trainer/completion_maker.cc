#include "worker/trainer/completion_maker.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "worker/generate/end_tokens.h"
#include "worker/memory/ledger.h"
#include "worker/parallel/byte_exchange.h"

namespace tessera {
namespace {

constexpr int64_t kPassesBetweenMeetings = 32;

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

// What ranks tell each other of a sample: its place, how many tokens it has, and whether it was cut
// off; then its tokens and their log-probabilities.
struct SampleHead {
  int64_t prompt, sample, num_tokens, truncated;
};

SampleHead take_head(std::string_view& bytes) {
  const std::vector<int64_t> head = take<int64_t>(bytes, 4);
  return {head[0], head[1], head[2], head[3]};
}

void append_head(std::string& bytes, const SampleHead& head) {
  const int64_t values[] = {head.prompt, head.sample, head.num_tokens, head.truncated};
  append(bytes, std::span<const int64_t>(values));
}

int64_t longest_of(const std::vector<PromptToComplete>& prompts) {
  size_t longest = 0;
  for (const PromptToComplete& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
  return static_cast<int64_t>(longest);
}

}  // namespace

CompletionMaker::CompletionMaker(const Parts& parts, EngineOptions options)
    : parts_(parts),
      sampling_(sampling_of(parts.spec)),
      num_pages_(options.num_pages),
      max_running_(options.limits.max_running) {
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
    const int64_t number = engine_->submit(
        {.prompt = prompt.tokens, .sampling = sampling_, .seeds = {begin, begin + part.count}});
    places_[number] = {part.request, part.first};
  }
}

// Passes are counted, not seconds: ranks that gather weights block by block go in step, and must
// turn to each other at the same place; and what a rank does is then the same each time.
void CompletionMaker::run(const std::vector<PromptToComplete>& prompts) {
  engine_->wake();
  do {
    for (int64_t pass = 0; pass < kPassesBetweenMeetings && engine_->step(); ++pass) parts_.alive();
  } while (meet(prompts));
}

// Ranks tell each other what they have left, and hand on what is too much. False: all are done.
// Who is done earlier waits here; collectives give up after some minutes, which so many passes do
// not take.
bool CompletionMaker::meet(const std::vector<PromptToComplete>& prompts) {
  const OwnerScope owner(Owner::kCommunication);
  Collectives& world = parts_.mesh.world;
  const RankLoad mine = load(longest_of(prompts));
  std::vector<int64_t> told(3 * static_cast<size_t>(world.size()));
  int64_t* own = told.data() + 3 * static_cast<ptrdiff_t>(world.rank());
  own[0] = mine.unfinished;
  own[1] = mine.movable;
  own[2] = mine.room;
  at::Tensor all = at::tensor(told, at::kLong).to(parts_.device);
  world.all_reduce_sum(all);
  parts_.alive();
  all = all.cpu();
  const int64_t* values = all.const_data_ptr<int64_t>();
  std::vector<RankLoad> loads;
  int64_t unfinished = 0;
  for (int rank = 0; rank < world.size(); ++rank, values += 3) {
    loads.push_back({values[0], values[1], values[2]});
    unfinished += values[0];
  }
  const std::vector<SampleMove> moves = even_out(loads);
  if (!moves.empty()) hand_over(prompts, moves);
  return unfinished > 0;
}

// There is room for as many whole sequences as there are pages: none gives way for another rank's.
RankLoad CompletionMaker::load(int64_t longest_prompt) const {
  const int64_t longest = longest_prompt + sampling_.max_new_tokens;
  const int64_t most = std::min(num_pages_ / pages_for(longest), max_running_);
  const int64_t unfinished = engine_->num_unfinished();
  return {.unfinished = unfinished,
          .movable = engine_->num_movable(),
          .room = std::max<int64_t>(0, most - unfinished)};
}

void CompletionMaker::hand_over(const std::vector<PromptToComplete>& prompts,
                                const std::vector<SampleMove>& moves) {
  Collectives& world = parts_.mesh.world;
  std::string given;
  for (const SampleMove& move : moves) {
    if (move.from != world.rank()) continue;
    for (const HandedSample& handed : engine_->hand_over(move.count)) {
      const Place place = place_of(handed.request, handed.sample);
      const BegunCompletion& begun = handed.rest.begun;
      append_head(given, {place.prompt, place.sample, std::ssize(begun.tokens), 0});
      append(given, std::span<const int32_t>(begun.tokens));
      append(given, std::span<const float>(begun.logprobs));
      append(given, std::span<const float>(begun.sampling_logprobs));
    }
  }
  const std::vector<std::string> of_ranks = all_gather_bytes(world, parts_.device, given);
  std::vector<std::string_view> rest(of_ranks.begin(), of_ranks.end());
  for (const SampleMove& move : moves) {
    for (int64_t i = 0; i < move.count; ++i) {
      const SampleHead head = take_head(rest[move.from]);
      const auto count = static_cast<size_t>(head.num_tokens);
      const PromptToComplete& prompt = prompts[head.prompt];
      GenerationRequest request{
          .prompt = prompt.tokens, .sampling = sampling_, .seeds = {prompt.seeds[head.sample]}};
      request.begun.tokens = take<int32_t>(rest[move.from], count);
      request.begun.logprobs = take<float>(rest[move.from], count);
      request.begun.sampling_logprobs = take<float>(rest[move.from], count);
      if (move.to != world.rank()) continue;
      engine_->bound_passes();
      places_[engine_->submit(std::move(request))] = {head.prompt, head.sample};
    }
  }
}

CompletionMaker::Place CompletionMaker::place_of(int64_t request, int64_t sample) const {
  const Place& first = places_.at(request);
  return {first.prompt, first.sample + sample};
}

std::string CompletionMaker::packed(const std::vector<Completion>& completions) const {
  std::string bytes;
  for (const Completion& completion : completions) {
    const Place place = place_of(completion.request, completion.sample);
    append_head(bytes, {place.prompt, place.sample, std::ssize(completion.tokens),
                        completion.finish == FinishReason::kLength ? 1 : 0});
    append(bytes, std::span<const int32_t>(completion.tokens));
    append(bytes, std::span<const float>(completion.sampling_logprobs));
  }
  return bytes;
}

std::vector<std::vector<MadeCompletion>> CompletionMaker::make(
    const std::vector<PromptToComplete>& prompts) {
  std::vector<int64_t> lengths;
  for (const PromptToComplete& prompt : prompts) lengths.push_back(std::ssize(prompt.tokens));
  const int64_t samples = std::ssize(prompts.front().seeds);
  Collectives& world = parts_.mesh.world;
  submit(prompts, deal_samples(lengths, samples, world.size())[world.rank()]);
  run(prompts);
  engine_->fall_asleep(parts_.sleep);
  const std::vector<std::string> of_ranks =
      all_gather_bytes(world, parts_.device, packed(engine_->take_finished()));
  places_.clear();
  std::vector<std::vector<MadeCompletion>> made(
      prompts.size(), std::vector<MadeCompletion>(static_cast<size_t>(samples)));
  for (std::string_view bytes : of_ranks) {
    while (!bytes.empty()) {
      const SampleHead head = take_head(bytes);
      MadeCompletion& completion = made[head.prompt][head.sample];
      completion.truncated = head.truncated != 0;
      completion.tokens = take<int32_t>(bytes, static_cast<size_t>(head.num_tokens));
      completion.sampling_logprobs = take<float>(bytes, static_cast<size_t>(head.num_tokens));
    }
  }
  return made;
}

}  // namespace tessera
