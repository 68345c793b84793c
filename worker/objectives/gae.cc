#include "worker/objectives/gae.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera {
namespace {

constexpr double kLeastVariance = 1e-8;

// Of all completions, one after the other.
struct Steps {
  std::vector<int64_t> begins;  // of each completion, and where the last one ends
  std::vector<double> rewards, values;
};

// Of a completion in a generation.
struct Place {
  int64_t first_label, num_labels;
  bool has_end;
};

std::vector<Place> places_of(const Generation& generation) {
  const int64_t longest = longest_labels(generation);
  std::vector<Place> places;
  for (int64_t i = 0; i < generation.size(); ++i) {
    const int64_t labels = generation.labels_of(i);
    places.push_back({generation.first_label(i), labels, labels > 0 && labels < longest});
  }
  return places;
}

double divergence(double logp, double reference, bool k3) {
  const double behind = reference - logp;
  return k3 ? std::exp(behind) - 1 - behind : -behind;
}

Steps steps_of(const std::vector<Place>& places, std::span<const double> scores_N,
               const GenerationScores& known, const TokenRewardOptions& options,
               TokenAdvantages& out) {
  Steps steps{.begins = {0}, .rewards = {}, .values = {}};
  const auto count = static_cast<double>(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    const Place& place = places[i];
    for (int64_t l = place.first_label; l < place.first_label + place.num_labels; ++l) {
      const double kl = divergence(known.old_logprobs[l], known.reference_logprobs[l], options.k3);
      out.mean_kl += kl / count;
      out.mean_entropy -= known.old_logprobs[l] / count;
      steps.rewards.push_back(-options.kl_coef * kl);
      steps.values.push_back(known.values[l]);
    }
    if (place.has_end) {
      steps.rewards.push_back(0);
      steps.values.push_back(known.end_values[i]);
    }
    if (place.num_labels > 0) steps.rewards.back() += scores_N[i];
    steps.begins.push_back(std::ssize(steps.rewards));
  }
  return steps;
}

// Of the steps [begin, end) of a completion, into the place of each one's.
void estimate(const Steps& steps, int64_t begin, int64_t end, const TokenRewardOptions& options,
              std::vector<double>& advantages) {
  double next_value = 0, advantage = 0;
  for (int64_t t = end; t-- > begin;) {
    const double surprise = steps.rewards[t] + options.gamma * next_value - steps.values[t];
    advantage = surprise + options.gamma * options.lam * advantage;
    advantages[t] = advantage;
    next_value = steps.values[t];
  }
}

}  // namespace

int64_t longest_labels(const Generation& generation) {
  int64_t longest = 0;
  for (int64_t i = 0; i < generation.size(); ++i)
    longest = std::max(longest, generation.labels_of(i));
  return longest;
}

void whiten(std::span<double> values, bool shifts) {
  if (values.size() < 2) return;
  const auto count = static_cast<double>(values.size());
  const double mean = std::reduce(values.begin(), values.end()) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double scale = 1 / std::sqrt(squares / (count - 1) + kLeastVariance);
  for (double& value : values) value = (value - mean) * scale + (shifts ? 0 : mean);
}

TokenAdvantages estimate_advantages(const Generation& generation, std::span<const double> scores_N,
                                    const GenerationScores& known,
                                    const TokenRewardOptions& options) {
  const std::vector<Place> places = places_of(generation);
  TokenAdvantages out;
  Steps steps = steps_of(places, scores_N, known, options, out);
  if (options.whiten_rewards) whiten(steps.rewards, /*shifts=*/false);
  std::vector<double> advantages(steps.rewards.size()), of_labels;
  for (size_t i = 0; i < places.size(); ++i)
    estimate(steps, steps.begins[i], steps.begins[i + 1], options, advantages);
  for (size_t i = 0; i < places.size(); ++i) {
    for (int64_t t = steps.begins[i]; t < steps.begins[i] + places[i].num_labels; ++t) {
      of_labels.push_back(advantages[t]);
      out.returns.push_back(static_cast<float>(advantages[t] + steps.values[t]));
    }
    const int64_t end = steps.begins[i + 1] - 1;
    out.end_returns.push_back(places[i].has_end
                                  ? static_cast<float>(advantages[end] + steps.values[end])
                                  : std::numeric_limits<float>::quiet_NaN());
  }
  whiten(of_labels, /*shifts=*/true);
  out.advantages.assign(of_labels.begin(), of_labels.end());
  return out;
}

}  // namespace tessera
