// What methods do with completions that were made at once, before they are trained on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/batch.h"
#include "worker/data/rollout_dataset.h"
#include "worker/objectives/objective.h"

namespace tessera {

// Of each label of a generation (worker/data/rollout_dataset.h). Empty: nobody needs them.
struct GenerationScores {
  std::vector<float> old_logprobs;        // of the policy as it is
  std::vector<float> reference_logprobs;  // of the reference
  std::vector<float> values;              // of the value model
  std::vector<float> end_values;          // the same at the last token of each rollout
};

struct GenerationTargets {
  std::vector<float> advantages;  // of each rollout; empty: see label_advantages
  // Of each label, as in CompletionTargets; empty: there are none.
  std::vector<float> sampling_logprobs, weights;
  // Of a method with a value model. The last is of rollouts, NaN where the value at the last token
  // does not count.
  std::vector<float> label_advantages, returns, end_returns;
  // By TRL's names; those that are NaN are not reported.
  std::vector<std::pair<std::string, double>> metrics;
};

// Of several objectives. Stateless and thread safe.
class OnlineMethod {
 public:
  virtual ~OnlineMethod() = default;

  // What scores() is to compute.
  struct Needs {
    bool old_logprobs = false;
    bool reference_logprobs = false;
    bool values = false;  // of the value model, also at last tokens
    double temperature = 1;

    // Of each label.
    int64_t count() const {
      return int64_t{old_logprobs} + int64_t{reference_logprobs} + int64_t{values};
    }
  };
  virtual Needs needs(const RolloutDataset& rollouts) const = 0;
  // `scores` hold what is needed. The same on every rank: no tensors, no collectives.
  virtual GenerationTargets targets(const RolloutDataset& rollouts, const Generation& generation,
                                    const GenerationScores& scores) const = 0;
};

// What is needed of a batch, float32.
struct BatchScores {
  at::Tensor labels_KL;     // [needs.count(), L], in the order of Needs: of this rank's labels
  at::Tensor end_values_S;  // 0 where another rank has the last token; undefined without values
};
// Without dropout and autograd. Collective.
BatchScores score_batch(const Models& models, const Batch& batch, const OnlineMethod::Needs& needs);

}  // namespace tessera
