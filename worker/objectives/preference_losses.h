// The losses of direct preference optimisation on pairs of completions. Source:
// trl/trainer/dpo_trainer.py; docs/methods.md has the formulas.
//
// P pairs. All tensors are float64.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <string_view>

#include "tessera/v1/job.pb.h"

namespace tessera {

// Of pairs: a completion that is preferred, and the one that it is preferred to.
struct Pair {
  at::Tensor chosen, rejected;

  // Whatever is 1-D of documents that are the chosen and the rejected one in turns.
  static Pair of(const at::Tensor& x_S);
  at::Tensor difference() const { return chosen - rejected; }
};

// What losses of single pairs are functions of, [P] each.
struct PairTerms {
  // log p of the policy less that of the reference.
  Pair logratios;
  // f'(p / p of the reference) of the divergence that holds the policy; the same with reverse_kl.
  Pair scores;
  Pair lengths;  // tokens of the completions, at least 1
};

struct PreferenceOptions {
  explicit PreferenceOptions(const v1::Dpo& dpo);

  double beta, label_smoothing, discopop_tau;
  std::string_view divergence;  // of the spec, which outlives this
  double divergence_alpha;
};

// PairTerms::scores of log-ratios.
at::Tensor divergence_scores(const at::Tensor& logratios, const PreferenceOptions& options);

using PairLoss = at::Tensor (*)(const PairTerms&, const PreferenceOptions&);  // [P]
// The loss of a loss_type whose pairs have losses of their own; null: aot, aot_unpaired, sft.
PairLoss pair_loss(std::string_view type);

// aot and aot_unpaired: the losses of two samples against each other, each sorted: [P]. What it
// gives is of no pair, but their mean is the loss.
at::Tensor transport_losses(const at::Tensor& better, const at::Tensor& worse,
                            const PreferenceOptions& options);

}  // namespace tessera
