#include "worker/objectives/preference_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sort.h>

#include <array>
#include <cmath>

namespace tessera {
namespace {

// -log(sigmoid(x)); beyond the threshold a float64 cannot tell it from -x.
at::Tensor logistic(const at::Tensor& x) { return at::softplus(-x, /*beta=*/1, /*threshold=*/40); }

at::Tensor per_token(const PairTerms& pairs) {
  return pairs.scores.chosen / pairs.lengths.chosen -
         pairs.scores.rejected / pairs.lengths.rejected;
}

at::Tensor scaled(const PairTerms& pairs, const PreferenceOptions& options) {
  return pairs.scores.difference() * options.beta;
}

at::Tensor sigmoid_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  return logistic(scaled(pairs, options));
}

at::Tensor hinge_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  return at::relu(1 - scaled(pairs, options));
}

at::Tensor ipo_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  return (per_token(pairs) - 1 / (2 * options.beta)).square();
}

// KL divergence of the policy's preference from one that is wrong with probability epsilon.
at::Tensor exo_pair_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  const at::Tensor x = scaled(pairs, options);
  const double log_right = std::log1p(-options.label_smoothing);
  const double log_wrong = std::log(options.label_smoothing);
  return at::sigmoid(x) * (-logistic(x) - log_right) +
         at::sigmoid(-x) * (-logistic(-x) - log_wrong);
}

at::Tensor nca_pair_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  const at::Tensor chosen = pairs.logratios.chosen * options.beta;
  const at::Tensor rejected = pairs.logratios.rejected * options.beta;
  return logistic(chosen) + 0.5 * logistic(-chosen) + 0.5 * logistic(-rejected);
}

at::Tensor robust_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  const at::Tensor x = scaled(pairs, options);
  const double epsilon = options.label_smoothing;
  return ((1 - epsilon) * logistic(x) - epsilon * logistic(-x)) / (1 - 2 * epsilon);
}

at::Tensor bco_pair_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  return logistic(pairs.logratios.chosen * options.beta) +
         logistic(-pairs.logratios.rejected * options.beta);
}

at::Tensor sppo_hard_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  const double target = 0.5 / options.beta;
  return (pairs.logratios.chosen - target).square() + (pairs.logratios.rejected + target).square();
}

at::Tensor apo_zero_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  return 1 - at::sigmoid(pairs.logratios.chosen * options.beta) +
         at::sigmoid(pairs.logratios.rejected * options.beta);
}

at::Tensor apo_down_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  return at::sigmoid(pairs.logratios.chosen * options.beta) + 1 -
         at::sigmoid(pairs.logratios.difference() * options.beta);
}

at::Tensor discopop_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  const at::Tensor x = scaled(pairs, options);
  const at::Tensor mix = at::sigmoid(x / options.discopop_tau);
  return logistic(x) * (1 - mix) + at::exp(-x) * mix;
}

at::Tensor sigmoid_norm_loss(const PairTerms& pairs, const PreferenceOptions& options) {
  return logistic(per_token(pairs) * options.beta);
}

struct NamedLoss {
  std::string_view type;
  PairLoss loss;
};
constexpr std::array kPairLosses{
    NamedLoss{"sigmoid", sigmoid_loss},   NamedLoss{"hinge", hinge_loss},
    NamedLoss{"ipo", ipo_loss},           NamedLoss{"exo_pair", exo_pair_loss},
    NamedLoss{"nca_pair", nca_pair_loss}, NamedLoss{"robust", robust_loss},
    NamedLoss{"bco_pair", bco_pair_loss}, NamedLoss{"sppo_hard", sppo_hard_loss},
    NamedLoss{"apo_zero", apo_zero_loss}, NamedLoss{"apo_down", apo_down_loss},
    NamedLoss{"discopop", discopop_loss}, NamedLoss{"sigmoid_norm", sigmoid_norm_loss}};

at::Tensor sorted(const at::Tensor& x) { return std::get<0>(at::sort(x, /*dim=*/0)); }

}  // namespace

Pair Pair::of(const at::Tensor& x_S) {
  const at::Tensor x_P2 = x_S.view({-1, 2});
  return {x_P2.select(1, 0), x_P2.select(1, 1)};
}

PreferenceOptions::PreferenceOptions(const v1::Dpo& dpo)
    : beta(dpo.beta()),
      label_smoothing(dpo.label_smoothing()),
      discopop_tau(dpo.discopop_tau()),
      divergence(dpo.f_divergence_type()),
      divergence_alpha(dpo.f_alpha_divergence_coef()) {}

at::Tensor divergence_scores(const at::Tensor& logratios, const PreferenceOptions& options) {
  if (options.divergence == "forward_kl") return 1 - at::exp(-logratios);
  if (options.divergence == "js_divergence") return std::log(2.0) - logistic(logratios);
  if (options.divergence == "alpha_divergence") {
    constexpr double kNearOne = 1e-6, kLargestExponent = 80;  // TRL's
    const double power = options.divergence_alpha - 1;
    if (std::abs(power) < kNearOne) return logratios;
    return (at::exp((logratios * power).clamp_max(kLargestExponent)) - 1) / power;
  }
  return logratios;
}

PairLoss pair_loss(std::string_view type) {
  for (const NamedLoss& named : kPairLosses) {
    if (named.type == type) return named.loss;
  }
  return nullptr;
}

at::Tensor transport_losses(const at::Tensor& better, const at::Tensor& worse,
                            const PreferenceOptions& options) {
  const at::Tensor x = (sorted(better) - sorted(worse)) * options.beta;
  return logistic(x) * (1 - options.label_smoothing) + logistic(-x) * options.label_smoothing;
}

}  // namespace tessera
