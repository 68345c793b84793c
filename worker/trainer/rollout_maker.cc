#include "worker/trainer/rollout_maker.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "worker/data/job_data.h"
#include "worker/data/rollout_lines.h"
#include "worker/errors.h"
#include "worker/model/dropout.h"
#include "worker/trainer/input.h"

namespace tessera {
namespace {

// Names of draws (make_draw).
constexpr uint64_t kSampleDraw = 0x73616D706C65;     // "sample"
constexpr uint64_t kShuffleDraw = 0x73687566666C65;  // "shuffle"
constexpr uint64_t kWriterDraw = 0x777269746572;     // "writer"
constexpr char kRecordField[] = "generation.record_to";

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
          .continues = !spec.method().has_online_dpo() && !spec.method().has_gkd()};
}

std::unique_ptr<PromptRecords> records_of(const RolloutMaker::Parts& parts) {
  if (parts.mesh.world.rank() != 0 || parts.judge == nullptr) return nullptr;
  DatasetOptions options = dataset_options(parts.spec, /*held_out=*/false, /*vocab_size=*/0);
  options.reports = parts.reporter.data();
  return std::make_unique<PromptRecords>(options);
}

// Takes that many lines off the front of the text.
std::string_view take_lines(std::string_view& text, int64_t count) {
  size_t end = 0;
  for (; count > 0 && end != std::string_view::npos; --count) {
    end = text.find('\n', end);
    if (end != std::string_view::npos) ++end;
  }
  const std::string_view lines = text.substr(0, end);
  text.remove_prefix(lines.size());
  return lines;
}

// Those that a checkpoint holds. Throws UserError: others than `count`.
std::vector<Rollout> parse_saved(std::string_view lines, const std::vector<std::string>& rewards,
                                 int64_t count) {
  std::vector<Rollout> rollouts;
  try {
    rollouts = parse_rollout_lines(lines, rewards);
  } catch (const std::invalid_argument&) {
    rollouts.clear();
  }
  if (std::ssize(rollouts) == count) return rollouts;
  throw UserError("reward_funcs",
                  "reward_funcs are others than those of the completions that the checkpoint is in "
                  "the middle of; with training.ignore_data_skip the epoch begins anew");
}

}  // namespace

RolloutMaker::RolloutMaker(const Parts& parts)
    : parts_(parts),
      order_(order_options(parts.spec, parts.rollouts)),
      records_(records_of(parts)),
      maker_({.rollouts = parts.rollouts,
              .records = records_.get(),
              .maker_of = [this](int64_t epoch, int64_t number) { return maker_of(epoch, number); },
              .judge = parts.judge,
              .draw = kSampleDraw,
              .seed = parts.spec.training().seed()}) {
  const std::string& directory = parts.spec.generation().record_to();
  if (parts.mesh.world.rank() == 0 && !directory.empty()) recorder_.emplace(directory);
}

GenerationNumbers RolloutMaker::missing_of(const StepRows& rows) const {
  const LiveRollouts& rollouts = parts_.rollouts;
  GenerationNumbers missing{.epoch = rows.epoch};
  const int64_t last = rollouts.number_of(rows.end - 1);
  for (int64_t number = rollouts.number_of(rows.begin); number <= last; ++number) {
    if (rows.epoch != epoch_ || !rollouts.has(number)) missing.numbers.push_back(number);
  }
  return missing;
}

void RolloutMaker::prepare(const StepRows& rows, const std::optional<StepRows>& next, int step) {
  step_ = step;
  LiveRollouts& rollouts = parts_.rollouts;
  if (rows.epoch != epoch_) rollouts.begin_epoch(rows.epoch);
  epoch_ = rows.epoch;
  rollouts.drop_before(rollouts.number_of(rows.begin));
  const GenerationNumbers missing = missing_of(rows);
  if (missing.numbers.empty()) return;
  parts_.on_phase(Phase::kGenerate);
  TORCH_CHECK(!ahead_ || ahead_->of == missing,
              "other completions were made ahead than are needed");
  MadeGenerations made = ahead_ ? *std::exchange(ahead_, std::nullopt) : make(missing);
  if (next) {
    GenerationNumbers later = missing_of(*next);
    // Of these some are about to come.
    if (later.epoch == missing.epoch) {
      std::erase_if(later.numbers,
                    [&](int64_t number) { return std::ranges::count(missing.numbers, number); });
    }
    ahead_ = make(later);
  }
  const auto begin = std::chrono::steady_clock::now();
  put(std::move(made));
  parts_.on_judged(std::chrono::steady_clock::now() - begin);
}

std::string RolloutMaker::text_of(std::span<const int32_t> tokens, bool is_prompt) const {
  return parts_.tokenizer.decode(tokens, /*skip_special_tokens=*/!is_prompt);
}

// With GKD drawn for each microbatch; else the policy. Null: nobody, they are the data's own.
CompletionMaker* RolloutMaker::maker_of(int64_t epoch, int64_t number) const {
  if (!parts_.spec.method().has_gkd()) return &parts_.policy;
  const uint64_t draw =
      make_draw({kWriterDraw, static_cast<uint64_t>(parts_.spec.training().seed()),
                 static_cast<uint64_t>(epoch), static_cast<uint64_t>(number)});
  const double place = std::ldexp(static_cast<double>(draw >> 11), -53);  // in [0, 1)
  return place < parts_.spec.method().gkd().lmbda() ? &parts_.policy : parts_.teacher;
}

MadeGenerations RolloutMaker::make(const GenerationNumbers& of) {
  return maker_.begin(of, order_.of_epoch(of.epoch), step_);
}

void RolloutMaker::put(MadeGenerations made) {
  const GenerationNumbers of = made.of;
  std::vector<std::vector<Rollout>> generations = maker_.finish(std::move(made), step_);
  for (size_t i = 0; i < generations.size(); ++i) {
    // As TRL does, so that completions of a prompt do not all stand in one microbatch.
    if (!parts_.rollouts.options().pairs && !parts_.spec.method().has_gkd()) {
      shuffle(generations[i],
              make_draw({kShuffleDraw, static_cast<uint64_t>(parts_.spec.training().seed()),
                         static_cast<uint64_t>(of.epoch), static_cast<uint64_t>(of.numbers[i])}));
    }
    put_generation(of.numbers[i], std::move(generations[i]));
  }
}

void RolloutMaker::put_generation(int64_t number, std::vector<Rollout> rollouts) {
  record(number, rollouts);
  parts_.rollouts.put(number, std::move(rollouts));
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

double RolloutMaker::staleness(const StepRows& rows, int step) const {
  const LiveRollouts& rollouts = parts_.rollouts;
  double sum = 0;
  for (int64_t row = rows.begin; row < rows.end; ++row)
    sum += static_cast<double>(step - rollouts.generation(row).rollouts.front().step);
  return sum / static_cast<double>(rows.end - rows.begin);
}

void RolloutMaker::save(v1::CheckpointState& state) const {
  std::string lines;
  if (state.has_generation()) {
    for (const Rollout& rollout : parts_.rollouts.generation(state.generation().row()).rollouts)
      lines += rollout_line(rollout, parts_.rollouts.reward_names());
  }
  if (ahead_) {
    // They are judged again: rewards may not be there yet.
    for (const Rollout& rollout : ahead_->rollouts) lines += rollout_line(rollout, {});
    if (!state.has_generation())
      state.mutable_generation()->set_row(parts_.rollouts.generation_begin(state.row()));
  }
  if (state.has_generation()) state.mutable_generation()->set_rollouts(lines);
}

void RolloutMaker::begin_recording(int64_t epoch, int64_t number, bool goes_on) const {
  if (!recorder_) return;
  if (!goes_on && !recorder_->is_empty()) {
    throw UserError(kRecordField, std::string(kRecordField) + " " +
                                      parts_.spec.generation().record_to() +
                                      " holds completions of another run, must be empty");
  }
  recorder_->begin(epoch, number);
}

void RolloutMaker::resume(const v1::CheckpointState& state, int64_t epoch, int64_t row,
                          const std::optional<StepRows>& next, bool goes_on) {
  LiveRollouts& live = parts_.rollouts;
  const int64_t number = live.number_of(row);
  step_ = state.step();
  epoch_ = epoch;
  live.begin_epoch(epoch);
  begin_recording(epoch, number, goes_on);
  const v1::GenerationScores& saved = state.generation();
  if (!state.has_generation() || saved.row() != live.begin_of(number)) return;
  std::string_view lines = saved.rollouts();
  if (row != saved.row()) {
    const int64_t count = maker_.size_of({epoch, {number}});
    put_generation(number, parse_saved(take_lines(lines, count), live.reward_names(), count));
  }
  if (next && !lines.empty()) resume_ahead(lines, missing_of(*next));
}

void RolloutMaker::resume_ahead(std::string_view lines, const GenerationNumbers& of) {
  ahead_ = maker_.begin_judging(of, order_.of_epoch(of.epoch),
                                parse_saved(lines, {}, maker_.size_of(of)));
}

}  // namespace tessera
