// The losses of pairs against their formulas, a pair at a time.
#include "worker/objectives/preference_losses.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "proto/spec/rules.h"

namespace tessera {
namespace {

const std::vector<double> kChosen{-3.2, 0.4, 0, 12.5, -0.01, 60};
const std::vector<double> kRejected{1.7, -0.6, 0, 12.4, 9, -400};
const std::vector<double> kLengths{1, 7, 3, 20, 2, 5};

at::Tensor tensor(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kDouble));
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double log_sigmoid(double x) {
  return x > 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
}

struct Formula {
  std::string type;
  double beta, smoothing;
  // Of the log-ratios of a pair and the lengths of its completions.
  std::function<double(double c, double r, double nc, double nr)> loss;
};
void PrintTo(const Formula& formula, std::ostream* out) { *out << formula.type; }

v1::Dpo options_of(const Formula& formula) {
  v1::JobSpec spec;
  v1::Dpo& dpo = *spec.mutable_method()->mutable_dpo();
  dpo.set_beta(formula.beta);
  dpo.set_label_smoothing(formula.smoothing);
  spec::fill_defaults(spec);
  return dpo;
}

class PairLosses : public ::testing::TestWithParam<Formula> {};

TEST_P(PairLosses, AreTheFormula) {
  const Formula& formula = GetParam();
  const v1::Dpo dpo = options_of(formula);
  const std::vector<double> shorter(kLengths.rbegin(), kLengths.rend());
  const Pair ratios{tensor(kChosen), tensor(kRejected)};
  const PairTerms terms{ratios, ratios, {tensor(kLengths), tensor(shorter)}};
  const PairLoss loss = pair_loss(formula.type);
  ASSERT_NE(loss, nullptr);
  const at::Tensor losses = loss(terms, PreferenceOptions(dpo));
  for (size_t i = 0; i < kChosen.size(); ++i) {
    const double expected = formula.loss(kChosen[i], kRejected[i], kLengths[i], shorter[i]);
    EXPECT_NEAR(losses[static_cast<int64_t>(i)].item<double>(), expected,
                1e-12 * (1 + std::abs(expected)))
        << i;
  }
}

const Formula kFormulas[] = {
    {"sigmoid", 0.3, 0,
     [](double c, double r, double, double) { return -log_sigmoid(0.3 * (c - r)); }},
    {"hinge", 0.3, 0,
     [](double c, double r, double, double) { return std::max(0.0, 1 - 0.3 * (c - r)); }},
    {"ipo", 0.3, 0,
     [](double c, double r, double nc, double nr) {
       return std::pow(c / nc - r / nr - 1 / 0.6, 2);
     }},
    {"exo_pair", 0.3, 0.1,
     [](double c, double r, double, double) {
       const double x = 0.3 * (c - r);
       return sigmoid(x) * (log_sigmoid(x) - std::log(0.9)) +
              sigmoid(-x) * (log_sigmoid(-x) - std::log(0.1));
     }},
    {"nca_pair", 0.3, 0,
     [](double c, double r, double, double) {
       return -log_sigmoid(0.3 * c) - 0.5 * log_sigmoid(-0.3 * c) - 0.5 * log_sigmoid(-0.3 * r);
     }},
    {"robust", 0.3, 0.2,
     [](double c, double r, double, double) {
       const double x = 0.3 * (c - r);
       return (-0.8 * log_sigmoid(x) + 0.2 * log_sigmoid(-x)) / 0.6;
     }},
    {"bco_pair", 0.3, 0,
     [](double c, double r, double, double) {
       return -log_sigmoid(0.3 * c) - log_sigmoid(-0.3 * r);
     }},
    {"sppo_hard", 0.5, 0,
     [](double c, double r, double, double) { return std::pow(c - 1, 2) + std::pow(r + 1, 2); }},
    {"apo_zero", 0.3, 0,
     [](double c, double r, double, double) { return 1 - sigmoid(0.3 * c) + sigmoid(0.3 * r); }},
    {"apo_down", 0.3, 0,
     [](double c, double r, double, double) {
       return sigmoid(0.3 * c) + 1 - sigmoid(0.3 * (c - r));
     }},
    {"discopop", 0.01, 0,
     [](double c, double r, double, double) {
       const double x = 0.01 * (c - r), mix = sigmoid(x / 0.05);
       return -log_sigmoid(x) * (1 - mix) + std::exp(-x) * mix;
     }},
    {"sigmoid_norm", 2, 0,
     [](double c, double r, double nc, double nr) { return -log_sigmoid(2 * (c / nc - r / nr)); }},
};
INSTANTIATE_TEST_SUITE_P(All, PairLosses, ::testing::ValuesIn(kFormulas),
                         [](const auto& formula) { return formula.param.type; });

TEST(PairLossesTest, AreOfPairsOnlyWhereTheyAre) {
  for (const char* type : {"aot", "aot_unpaired", "sft"}) EXPECT_EQ(pair_loss(type), nullptr);
}

TEST(TransportLosses, ComparesWhatIsSorted) {
  const v1::Dpo dpo = options_of({"aot", 0.5, 0.1, {}});
  const at::Tensor losses =
      transport_losses(tensor({3, -1, 2}), tensor({0, 5, -2}), PreferenceOptions(dpo));
  const std::vector<double> better{-1, 2, 3}, worse{-2, 0, 5};
  for (size_t i = 0; i < better.size(); ++i) {
    const double x = 0.5 * (better[i] - worse[i]);
    EXPECT_NEAR(losses[static_cast<int64_t>(i)].item<double>(),
                -0.9 * log_sigmoid(x) - 0.1 * log_sigmoid(-x), 1e-12);
  }
}

TEST(DivergenceScores, AreTheDerivatives) {
  v1::Dpo dpo = options_of({"sigmoid", 0.1, 0, {}});
  const auto scores = [&](const char* type, double alpha) {
    dpo.set_f_divergence_type(type);
    dpo.set_f_alpha_divergence_coef(alpha);
    return divergence_scores(tensor(kChosen), PreferenceOptions(dpo));
  };
  const auto expect = [&](const at::Tensor& found, const std::function<double(double)>& formula) {
    for (size_t i = 0; i < kChosen.size(); ++i) {
      const double expected = formula(kChosen[i]);
      EXPECT_NEAR(found[static_cast<int64_t>(i)].item<double>(), expected,
                  1e-12 * (1 + std::abs(expected)));
    }
  };
  expect(scores("reverse_kl", 0.5), [](double x) { return x; });
  expect(scores("forward_kl", 0.5), [](double x) { return 1 - std::exp(-x); });
  expect(scores("js_divergence", 0.5), [](double x) { return std::log(2) + log_sigmoid(x); });
  expect(scores("alpha_divergence", 0.3), [](double x) { return (std::exp(-0.7 * x) - 1) / -0.7; });
  expect(scores("alpha_divergence", 1), [](double x) { return x; });
  // The exponent is bounded.
  expect(scores("alpha_divergence", 3),
         [](double x) { return (std::exp(std::min(2 * x, 80.0)) - 1) / 2; });
}

}  // namespace
}  // namespace tessera
