#include "worker/trainer/row_sizes.h"

#include <algorithm>
#include <system_error>

#include "proto/spec/online_relations.h"
#include "proto/spec/reward_relations.h"
#include "worker/data/longest_rollouts.h"
#include "worker/errors.h"
#include "worker/trainer/engine_setup.h"
#include "worker/trainer/input.h"

namespace tessera {
namespace {

// Some milliseconds' worth.
constexpr int64_t kRowsBetweenReports = 1 << 12;

// Of rows that are read.
std::unique_ptr<RowSizes> sizes_of_documents(const v1::JobSpec& spec, bool held_out,
                                             const ModelConfig& config, const Reports& reports) {
  return std::make_unique<RowSizes>(read_documents(spec, held_out, config.vocab_size, reports),
                                    reports, /*is_assumed=*/false);
}

// Of those that are made in training.
std::unique_ptr<RowSizes> sizes_of_completions(const v1::JobSpec& spec, bool held_out,
                                               const ModelConfig& config, const Reports& reports) {
  DatasetOptions options = dataset_options(spec, held_out, config.vocab_size);
  options.reports = reports;
  const std::unique_ptr<LiveRollouts> prompts = load_prompts(options);
  auto sizes = std::make_unique<RowSizes>(std::make_unique<LongestRollouts>(options, *prompts),
                                          reports, /*is_assumed=*/false);
  const int64_t at_once = held_out ? prompts->prompts().size()
                                   : generation_work(spec, /*longest_prompt=*/1).num_prompts;
  sizes->set_judged(judged_lengths(spec, options, *prompts, at_once));
  return sizes;
}

// Of recorded completions that cannot be read: these are as many as can be made at once, and are
// taken to hold what the job may use of them.
void assume_recorded(const v1::JobSpec& spec, RolloutOptions& options) {
  options.max_completion_length = spec::longest_completion(spec.method());
  options.has_logprobs = spec.method().has_grpo();
  options.reward_names.resize(std::max<size_t>(1, options.reward_weights.size()), "reward");
}

// Of a step, or of a microbatch of an evaluation.
std::unique_ptr<Dataset> full_prompts(const v1::JobSpec& spec, bool held_out,
                                      const ModelConfig& config) {
  const int64_t room = config.rope.max_positions - spec::longest_completion(spec.method());
  const GenerationWork work =
      generation_work(held_out ? spec::evaluation_job(spec) : spec, /*longest_prompt=*/1);
  DatasetOptions options = dataset_options(spec, held_out, config.vocab_size);
  if (!options.rollouts->is_live) assume_recorded(spec, *options.rollouts);
  return std::make_unique<LongestRollouts>(options, work.num_prompts, std::max<int64_t>(1, room));
}

}  // namespace

RowSizes::RowSizes(std::unique_ptr<Dataset> inner, const Reports& reports, bool is_assumed)
    : inner_(std::move(inner)), is_assumed_(is_assumed) {
  sizes_.reserve(inner_->size());
  const Dataset* mismatched = inner_->mismatched();
  for (int64_t i = 0; i < inner_->size(); ++i) {
    if (i % kRowsBetweenReports == 0) reports.alive();
    sizes_.push_back({static_cast<int32_t>(inner_->num_tokens(i)),
                      static_cast<int32_t>(inner_->num_labels(i)),
                      std::ranges::max(inner_->lengths(i)),
                      mismatched != nullptr ? static_cast<int32_t>(mismatched->num_tokens(i)) : 0});
  }
}

std::unique_ptr<RowSizes> read_row_sizes(const v1::JobSpec& spec, bool held_out,
                                         const ModelConfig& config, const Reports& reports) {
  try {
    return spec::makes_completions(spec, held_out)
               ? sizes_of_completions(spec, held_out, config, reports)
               : sizes_of_documents(spec, held_out, config, reports);
  } catch (const UserError&) {
    // Full rows then, which every row fits in.
  } catch (const std::system_error&) {
    // Likewise: a run may see the files where this does not.
  }
  const bool is_replay = !held_out && spec::takes_completions(spec.method());
  if (!spec::makes_completions(spec, held_out) && !is_replay) return nullptr;
  return std::make_unique<RowSizes>(full_prompts(spec, held_out, config), Reports(),
                                    /*is_assumed=*/true);
}

}  // namespace tessera
