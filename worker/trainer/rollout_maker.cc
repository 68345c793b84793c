#include "worker/trainer/rollout_maker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/data/rollout_lines.h"
#include "worker/errors.h"
#include "worker/model/dropout.h"
#include "worker/parallel/byte_exchange.h"
#include "worker/trainer/generation_weights.h"
#include "worker/trainer/input.h"

namespace tessera {
namespace {

// Names of draws (make_draw).
constexpr uint64_t kSampleDraw = 0x73616D706C65;     // "sample"
constexpr uint64_t kShuffleDraw = 0x73687566666C65;  // "shuffle"
// While rank 0 judges, the others hear of it so often.
constexpr auto kBetweenSigns = std::chrono::seconds(10);
constexpr char kRecordField[] = "generation.record_to";

uint64_t draw_of(uint64_t name, int64_t seed, int64_t epoch, int64_t place) {
  return make_draw({name, static_cast<uint64_t>(seed), static_cast<uint64_t>(epoch),
                    static_cast<uint64_t>(place)});
}

// The same order for the same draw, on every rank.
void shuffle(std::vector<Rollout>& rollouts, uint64_t draw) {
  for (size_t i = rollouts.size(); i > 1; --i) {
    const uint64_t other = make_draw({draw, i}) % i;
    std::swap(rollouts[i - 1], rollouts[other]);
  }
}

PromptOrderOptions order_options(const v1::JobSpec& spec, const LiveRollouts& rollouts) {
  return {.num_prompts = rollouts.prompts().size(),
          .shuffle = shuffles_rows(spec),
          .seed = spec.training().seed(),
          .continues = !spec.method().has_online_dpo()};
}

}  // namespace

RolloutMaker::RolloutMaker(const Parts& parts)
    : parts_(parts),
      spec_(with_generation_weights(parts.input.spec(), parts.mesh, parts.device,
                                    parts.input.local_world_size())),
      tokenizer_(tokenizer_directory(spec_)),
      order_(order_options(spec_, parts.rollouts)),
      completions_({.spec = spec_,
                    .tokenizer = tokenizer_,
                    .policy = parts.policy,
                    .mesh = parts.mesh,
                    .device = parts.device,
                    .on_transition =
                        [this](const EngineTransition& transition) {
                          parts_.reporter.generation(transition, step_ + 1);
                        },
                    .alive = [this] { parts_.reporter.progress("generate", step_ + 1); }},
                   generation_work(spec_, parts.rollouts.longest_prompt())),
      patience_(parts.mesh.world, parts.device,
                [this] { parts_.reporter.progress("reward", step_ + 1); }) {
  if (parts.mesh.world.rank() != 0) return;
  DatasetOptions options = dataset_options(spec_, /*held_out=*/false, /*vocab_size=*/0);
  options.reports = parts.reporter.data();
  records_ = std::make_unique<PromptRecords>(options);
  judges_ = std::make_unique<Judges>(spec_, Judges::Context{.job_id = parts.input.job_id(),
                                                            .on_waiting =
                                                                [this](const std::string& reason) {
                                                                  parts_.reporter.waiting(
                                                                      reason, step_ + 1);
                                                                },
                                                            .alive = [this] { still_judging(); }});
  if (!spec_.generation().record_to().empty()) recorder_.emplace(spec_.generation().record_to());
}

RolloutMaker::Missing RolloutMaker::missing_generation(int64_t number) const {
  const LiveRollouts& rollouts = parts_.rollouts;
  const std::vector<int64_t> epoch = order_.of_epoch(epoch_);
  Missing missing{.number = number};
  missing.first_prompt =
      number * rollouts.options().generation_rows / rollouts.options().num_generations;
  const auto begin = epoch.begin() + missing.first_prompt;
  missing.prompts.assign(begin, begin + rollouts.prompts_of(number));
  return missing;
}

void RolloutMaker::prepare(int64_t epoch, int64_t begin, int64_t end, int step) {
  step_ = step;
  LiveRollouts& rollouts = parts_.rollouts;
  if (epoch != epoch_) rollouts.begin_epoch(epoch);
  epoch_ = epoch;
  const int64_t first = rollouts.number_of(begin), last = rollouts.number_of(end - 1);
  rollouts.drop_before(first);
  std::vector<Missing> missing;
  for (int64_t number = first; number <= last; ++number) {
    if (!rollouts.has(number)) missing.push_back(missing_generation(number));
  }
  if (missing.empty()) return;
  parts_.on_phase(Phase::kGenerate);
  std::vector<Rollout> made = make(missing);
  auto next = made.begin();
  for (const Missing& generation : missing) {
    const int64_t count = rollouts.rows_of(generation.number) * rollouts.completions_per_row();
    std::vector<Rollout> own{std::make_move_iterator(next), std::make_move_iterator(next + count)};
    next += count;
    // As TRL does, so that completions of a prompt do not all stand in one microbatch.
    if (!rollouts.options().pairs)
      shuffle(own, draw_of(kShuffleDraw, spec_.training().seed(), epoch_, generation.number));
    put(generation.number, std::move(own));
  }
}

void RolloutMaker::put(int64_t number, std::vector<Rollout> rollouts) {
  record(number, rollouts);
  parts_.rollouts.put(number, std::move(rollouts));
}

// Judged, those of a prompt one after the other.
std::vector<Rollout> RolloutMaker::make(const std::vector<Missing>& missing) {
  std::vector<Rollout> rollouts = rollouts_of(missing);
  const auto begin = std::chrono::steady_clock::now();
  judge(missing, rollouts);
  parts_.on_judged(std::chrono::steady_clock::now() - begin);
  return rollouts;
}

std::vector<Rollout> RolloutMaker::rollouts_of(const std::vector<Missing>& missing) {
  const LiveRollouts& live = parts_.rollouts;
  const int64_t samples = live.options().num_generations * live.completions_per_row();
  std::vector<PromptToComplete> prompts;
  std::vector<std::string> groups;
  for (const Missing& generation : missing) {
    for (int64_t i = 0; i < std::ssize(generation.prompts); ++i) {
      const int64_t place = generation.first_prompt + i;
      PromptToComplete& prompt = prompts.emplace_back();
      prompt.tokens = live.prompts().row(generation.prompts[i]).tokens;
      for (int64_t sample = 0; sample < samples; ++sample) {
        prompt.seeds.push_back(
            draw_of(kSampleDraw, spec_.training().seed(), epoch_, place * samples + sample));
      }
      groups.push_back('"' + std::to_string(epoch_) + '-' + std::to_string(place) + '"');
    }
  }
  std::vector<std::vector<MadeCompletion>> made = completions_.make(prompts);
  std::vector<Rollout> rollouts;
  for (size_t i = 0; i < made.size(); ++i) {
    for (MadeCompletion& completion : made[i]) {
      rollouts.push_back({.prompt = prompts[i].tokens,
                          .completion = std::move(completion.tokens),
                          .logprobs = std::move(completion.sampling_logprobs),
                          .group = groups[i],
                          .truncated = completion.truncated});
    }
  }
  return rollouts;
}

std::string RolloutMaker::text_of(std::span<const int32_t> tokens, bool is_prompt) const {
  return tokenizer_.decode(tokens, /*skip_special_tokens=*/!is_prompt);
}

void RolloutMaker::judge(const std::vector<Missing>& missing, std::vector<Rollout>& rollouts) {
  std::string bytes;
  if (judges_ != nullptr) {
    last_sign_ = std::chrono::steady_clock::now();
    const std::vector<float> given = scores(missing, rollouts);
    bytes.assign(reinterpret_cast<const char*>(given.data()), given.size() * sizeof(float));
  }
  patience_.wait_for_all();
  bytes = broadcast_bytes(parts_.mesh.world, parts_.device, bytes);
  const size_t count = parts_.rollouts.reward_names().size();
  for (size_t i = 0; i < rollouts.size(); ++i) {
    std::vector<float>& rewards = rollouts[i].rewards;
    rewards.resize(count);
    std::memcpy(rewards.data(), bytes.data() + i * count * sizeof(float), count * sizeof(float));
    for (float& reward : rewards) {
      if (!std::isfinite(reward)) reward = std::numeric_limits<float>::quiet_NaN();
    }
    if (has_warned_ || !std::ranges::all_of(rewards, [](float r) { return std::isnan(r); }))
      continue;
    has_warned_ = true;
    parts_.reporter.warn("no reward_funcs can judge the completion \"" +
                         text_of(rollouts[i].completion, false).substr(0, 200) +
                         "\": it does not count (said once)");
  }
}

// On world rank 0.
std::vector<float> RolloutMaker::scores(const std::vector<Missing>& missing,
                                        const std::vector<Rollout>& rollouts) {
  const LiveRollouts& live = parts_.rollouts;
  const int64_t samples = live.options().num_generations * live.completions_per_row();
  std::vector<std::string_view> records;
  for (const Missing& generation : missing) {
    for (const int64_t prompt : generation.prompts)
      records.insert(records.end(), samples, records_->of(live.prompts().document(prompt)));
  }
  std::vector<JudgedCompletion> judged;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const Rollout& rollout = rollouts[i];
    judged.push_back({.prompt = text_of(rollout.prompt, true),
                      .completion = text_of(rollout.completion, false),
                      .prompt_ids = rollout.prompt,
                      .completion_ids = rollout.completion,
                      .truncated = rollout.truncated,
                      .record = records[i]});
  }
  return judges_->judge(judged, step_);
}

void RolloutMaker::still_judging() {
  parts_.reporter.progress("reward", step_ + 1);
  const auto now = std::chrono::steady_clock::now();
  if (now - last_sign_ < kBetweenSigns) return;
  last_sign_ = now;
  patience_.still_working();
}

void RolloutMaker::record(int64_t number, const std::vector<Rollout>& rollouts) const {
  if (!recorder_) return;
  std::string lines;
  for (const Rollout& rollout : rollouts) {
    const RolloutTexts texts{text_of(rollout.prompt, true), text_of(rollout.completion, false)};
    lines += rollout_line(rollout, parts_.rollouts.reward_names(), &texts);
  }
  recorder_->write(epoch_, number, lines);
}

void RolloutMaker::save(v1::CheckpointState& state) const {
  if (!state.has_generation()) return;
  std::string lines;
  for (const Rollout& rollout : parts_.rollouts.generation(state.generation().row()).rollouts)
    lines += rollout_line(rollout, parts_.rollouts.reward_names());
  state.mutable_generation()->set_rollouts(lines);
}

void RolloutMaker::resume(const v1::CheckpointState& state, int64_t epoch, int64_t row,
                          bool goes_on) {
  LiveRollouts& live = parts_.rollouts;
  const int64_t number = live.number_of(row);
  epoch_ = epoch;
  live.begin_epoch(epoch);
  if (recorder_) {
    if (!goes_on && !recorder_->is_empty()) {
      throw UserError(kRecordField, std::string(kRecordField) + " " +
                                        spec_.generation().record_to() +
                                        " holds completions of another run, must be empty");
    }
    recorder_->begin(epoch, number);
  }
  const v1::GenerationScores& saved = state.generation();
  if (!state.has_generation() || saved.row() != live.begin_of(number)) return;
  std::vector<Rollout> rollouts;
  try {
    rollouts = parse_rollout_lines(saved.rollouts(), live.reward_names());
  } catch (const std::invalid_argument&) {
    rollouts.clear();
  }
  if (std::ssize(rollouts) != live.rows_of(number) * live.completions_per_row()) {
    throw UserError("reward_funcs",
                    "reward_funcs are others than those of the completions that the checkpoint is "
                    "in the middle of; with training.ignore_data_skip the epoch begins anew");
  }
  put(number, std::move(rollouts));
}

}  // namespace tessera
