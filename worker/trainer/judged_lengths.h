// How many tokens reward models read of completions that nobody has made yet.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "worker/data/live_rollouts.h"

namespace tessera {

// By the tokenizer of one model.
struct JudgedLengths {
  std::vector<int64_t> prompts;  // tokens of each with an empty completion
  double per_token = 1;          // that it makes of the text of one of the policy's tokens

  // Of prompt `index`, with a completion of so many of the policy's tokens.
  int64_t of(size_t index, int64_t completion_tokens) const;
};

// Of each reward_funcs entry that is a model: the lengths of the `count` prompts of which the
// policy has the most tokens, these first, as LongestRollouts has them. What it makes of their text
// tells what it will make of completions. Empty: there is no such entry, or it cannot be read.
// `data`: where the prompts come from; reports.alive() is called, and may throw UserError to end
// it.
std::vector<JudgedLengths> judged_lengths(const v1::JobSpec& spec, const DatasetOptions& data,
                                          const LiveRollouts& prompts, int64_t count);

}  // namespace tessera
