#include "worker/objectives/importance.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

double bounded(double ratio, const ImportanceOptions& options) {
  if (!options.masks) return std::clamp(ratio, options.least, options.most);
  return ratio < options.least || ratio > options.most ? 0 : ratio;
}

// Mean, least and greatest of values as they come.
struct Summary {
  double sum = 0, least = 0, most = 0;
  int64_t count = 0;

  void add(double value) {
    least = count == 0 ? value : std::min(least, value);
    most = count == 0 ? value : std::max(most, value);
    sum += value;
    ++count;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

}  // namespace

ImportanceWeights weigh_samples(const Generation& generation, std::span<const float> old,
                                std::span<const float> sampling, const ImportanceOptions& options) {
  ImportanceWeights weights;
  Summary differences, ratios;
  for (int64_t r = 0; r < generation.size(); ++r) {
    const int64_t first = generation.first_label(r), end = first + generation.labels_of(r);
    double of_sequence = 0;
    std::vector<double> of_tokens;
    for (int64_t i = first; i < end; ++i) {
      const double difference = old[i] - sampling[i];
      of_tokens.push_back(std::isnan(difference) ? 0 : difference);
      of_sequence += of_tokens.back();
      if (!std::isnan(difference)) differences.add(std::abs(difference));
    }
    const double sequence_ratio = bounded(std::exp(of_sequence), options);
    if (options.by_sequence) ratios.add(sequence_ratio);
    for (const double difference : of_tokens) {
      const double ratio =
          options.by_sequence ? sequence_ratio : bounded(std::exp(difference), options);
      if (!options.by_sequence) ratios.add(ratio);
      weights.of_labels.push_back(static_cast<float>(ratio));
    }
  }
  weights.metrics = {{"sampling/sampling_logp_difference/mean", differences.mean()},
                     {"sampling/sampling_logp_difference/max", differences.most},
                     {"sampling/importance_sampling_ratio/min", ratios.least},
                     {"sampling/importance_sampling_ratio/mean", ratios.mean()},
                     {"sampling/importance_sampling_ratio/max", ratios.most}};
  return weights;
}

}  // namespace tessera
