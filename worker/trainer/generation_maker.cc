#include "worker/trainer/generation_maker.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "worker/model/dropout.h"

namespace tessera {

// Of a prompt.
int64_t GenerationMaker::samples() const {
  return parts_.rollouts.options().num_generations * parts_.rollouts.completions_per_row();
}

// Its place in the epoch.
int64_t GenerationMaker::first_prompt(int64_t number) const {
  const RolloutOptions& options = parts_.rollouts.options();
  return number * options.generation_rows / options.num_generations;
}

std::span<const int64_t> GenerationMaker::prompts_of(int64_t number,
                                                     std::span<const int64_t> order) const {
  return order.subspan(static_cast<size_t>(first_prompt(number)),
                       static_cast<size_t>(parts_.rollouts.prompts_of(number)));
}

int64_t GenerationMaker::size_of(const GenerationNumbers& of) const {
  int64_t size = 0;
  for (const int64_t number : of.numbers)
    size += parts_.rollouts.rows_of(number) * parts_.rollouts.completions_per_row();
  return size;
}

std::vector<GenerationMaker::Asked> GenerationMaker::asked(const GenerationNumbers& of,
                                                           std::span<const int64_t> order) const {
  std::vector<Asked> asked;
  for (const int64_t number : of.numbers) {
    CompletionMaker* const maker = parts_.maker_of(of.epoch, number);
    int64_t place = first_prompt(number);
    for (const int64_t index : prompts_of(number, order)) {
      Asked& prompt = asked.emplace_back(maker, index);
      prompt.request.tokens = parts_.rollouts.prompt(index);
      for (int64_t sample = 0; sample < samples(); ++sample) {
        prompt.request.seeds.push_back(make_draw(
            {parts_.draw, static_cast<uint64_t>(parts_.seed), static_cast<uint64_t>(of.epoch),
             static_cast<uint64_t>(place * samples() + sample)}));
      }
      prompt.group = '"' + std::to_string(of.epoch) + '-' + std::to_string(place++) + '"';
    }
  }
  return asked;
}

// Of each prompt; none where they are the data's own. Each maker makes all of its own at once.
std::vector<std::vector<MadeCompletion>> GenerationMaker::complete(
    const std::vector<Asked>& asked) const {
  std::vector<std::vector<MadeCompletion>> completions(asked.size());
  std::vector<CompletionMaker*> makers;
  for (const Asked& prompt : asked) {
    if (prompt.maker != nullptr && !std::ranges::count(makers, prompt.maker))
      makers.push_back(prompt.maker);
  }
  for (CompletionMaker* const maker : makers) {
    std::vector<PromptToComplete> requests;
    std::vector<size_t> places;
    for (size_t i = 0; i < asked.size(); ++i) {
      if (asked[i].maker != maker) continue;
      requests.push_back(asked[i].request);
      places.push_back(i);
    }
    std::vector<std::vector<MadeCompletion>> made = maker->make(requests);
    for (size_t i = 0; i < made.size(); ++i) completions[places[i]] = std::move(made[i]);
  }
  return completions;
}

MadeGenerations GenerationMaker::begin(const GenerationNumbers& of, std::span<const int64_t> order,
                                       int step) {
  std::vector<Asked> prompts = asked(of, order);
  std::vector<std::vector<MadeCompletion>> completions = complete(prompts);
  std::vector<Rollout> rollouts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].maker == nullptr)
      rollouts.push_back(parts_.rollouts.document(prompts[i].prompt));
    for (MadeCompletion& completion : completions[i]) {
      Rollout& rollout = rollouts.emplace_back();
      rollout.prompt = prompts[i].request.tokens;
      rollout.completion = std::move(completion.tokens);
      rollout.truncated = completion.truncated;
      // All of a recording have some, or none.
      if (!parts_.rollouts.options().has_documents)
        rollout.logprobs = std::move(completion.sampling_logprobs);
    }
    for (auto own = rollouts.end() - samples(); own != rollouts.end(); ++own) {
      own->group = prompts[i].group;
      own->step = step;
    }
  }
  return begin_judging(of, order, std::move(rollouts));
}

MadeGenerations GenerationMaker::begin_judging(const GenerationNumbers& of,
                                               std::span<const int64_t> order,
                                               std::vector<Rollout> rollouts) {
  std::vector<std::string_view> records;
  if (parts_.records != nullptr) {
    for (const int64_t number : of.numbers) {
      for (const int64_t prompt : prompts_of(number, order)) {
        records.insert(records.end(), static_cast<size_t>(samples()),
                       parts_.records->of(parts_.rollouts.prompts().document(prompt)));
      }
    }
  }
  const auto step = rollouts.empty() ? 0 : static_cast<int>(rollouts.front().step);
  MadeGenerations made{.of = of, .rollouts = std::move(rollouts)};
  if (parts_.judge != nullptr) made.judging = parts_.judge->begin(made.rollouts, records, step);
  return made;
}

std::vector<std::vector<Rollout>> GenerationMaker::finish(MadeGenerations made, int step) {
  if (parts_.judge != nullptr) parts_.judge->finish(std::move(made.judging), made.rollouts, step);
  std::vector<std::vector<Rollout>> generations;
  auto next = made.rollouts.begin();
  for (const int64_t number : made.of.numbers) {
    const int64_t count = size_of({made.of.epoch, {number}});
    generations.emplace_back(std::make_move_iterator(next), std::make_move_iterator(next + count));
    next += count;
  }
  return generations;
}

}  // namespace tessera
