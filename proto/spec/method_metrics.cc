#include "proto/spec/method_metrics.h"

#include <array>

namespace tessera::spec {
namespace {

constexpr std::array kSft{MethodMetric{"entropy"}, MethodMetric{"mean_token_accuracy"}};

constexpr std::array kDpo{MethodMetric{"entropy"},
                          MethodMetric{"mean_token_accuracy"},
                          MethodMetric{"logits/chosen"},
                          MethodMetric{"logits/rejected"},
                          MethodMetric{"rewards/chosen"},
                          MethodMetric{"rewards/rejected"},
                          MethodMetric{"rewards/accuracies"},
                          MethodMetric{"rewards/margins"},
                          MethodMetric{"logps/chosen"},
                          MethodMetric{"logps/rejected"}};

constexpr std::array kKto{MethodMetric{"entropy"},
                          MethodMetric{"kl"},
                          MethodMetric{"logits/chosen", /*may_lack=*/true},
                          MethodMetric{"logits/rejected", /*may_lack=*/true},
                          MethodMetric{"rewards/chosen", /*may_lack=*/true},
                          MethodMetric{"rewards/rejected", /*may_lack=*/true},
                          MethodMetric{"rewards/margins", /*may_lack=*/true},
                          MethodMetric{"logps/chosen", /*may_lack=*/true},
                          MethodMetric{"logps/rejected", /*may_lack=*/true}};

constexpr std::array kReward{MethodMetric{"min_reward"}, MethodMetric{"mean_reward"},
                             MethodMetric{"max_reward"}, MethodMetric{"accuracy"},
                             MethodMetric{"margin"}};

// What of these a job has depends on its loss_type and beta.
constexpr std::array kGrpo{MethodMetric{"entropy"},
                           MethodMetric{"kl", /*may_lack=*/true},
                           MethodMetric{"clip_ratio/low_mean", /*may_lack=*/true},
                           MethodMetric{"clip_ratio/low_min", /*may_lack=*/true},
                           MethodMetric{"clip_ratio/high_mean", /*may_lack=*/true},
                           MethodMetric{"clip_ratio/high_max", /*may_lack=*/true},
                           MethodMetric{"clip_ratio/region_mean", /*may_lack=*/true},
                           MethodMetric{"cispo_clip_ratio", /*may_lack=*/true},
                           MethodMetric{"vespo/phi_seq_mean", /*may_lack=*/true}};

constexpr std::array kRloo{MethodMetric{"entropy"},
                           MethodMetric{"clip_ratio/low_mean"},
                           MethodMetric{"clip_ratio/low_min"},
                           MethodMetric{"clip_ratio/high_mean"},
                           MethodMetric{"clip_ratio/high_max"},
                           MethodMetric{"clip_ratio/region_mean"}};

constexpr std::array kOnlineDpo{MethodMetric{"objective/kl"},
                                MethodMetric{"objective/entropy"},
                                MethodMetric{"objective/non_score_reward"},
                                MethodMetric{"objective/rlhf_reward"},
                                MethodMetric{"rewards/chosen"},
                                MethodMetric{"rewards/rejected"},
                                MethodMetric{"rewards/accuracies"},
                                MethodMetric{"rewards/margins"},
                                MethodMetric{"logps/chosen"},
                                MethodMetric{"logps/rejected"},
                                MethodMetric{"beta"}};

// Those of the policy and those of the value model are measured one after the other.
constexpr std::array kPpo{MethodMetric{"loss/policy_avg", /*may_lack=*/true},
                          MethodMetric{"policy/approxkl_avg", /*may_lack=*/true},
                          MethodMetric{"policy/clipfrac_avg", /*may_lack=*/true},
                          MethodMetric{"policy/entropy_avg", /*may_lack=*/true},
                          MethodMetric{"val/ratio", /*may_lack=*/true},
                          MethodMetric{"loss/value_avg", /*may_lack=*/true},
                          MethodMetric{"val/clipfrac_avg", /*may_lack=*/true}};

// Of completions before they are trained on.
constexpr std::array kOfCompletions{"reward",
                                    "reward_std",
                                    "completions/mean_length",
                                    "completions/min_length",
                                    "completions/max_length",
                                    "completions/clipped_ratio",
                                    "completions/mean_terminated_length",
                                    "completions/min_terminated_length",
                                    "completions/max_terminated_length"};
constexpr std::array kOfGroups{"frac_reward_zero_std"};
constexpr std::array kOfTokens{"objective/kl",       "objective/entropy",
                               "objective/scores",   "objective/non_score_reward",
                               "val/num_eos_tokens", "objective/rlhf_reward"};
constexpr std::array kOfPairs{"objective/scores", "objective/scores_margin",
                              "val/contain_eos_token"};

}  // namespace

std::span<const MethodMetric> metrics_of(const v1::Method& method) {
  switch (method.kind_case()) {
    case v1::Method::kSft:
      return kSft;
    case v1::Method::kDpo:
      return kDpo;
    case v1::Method::kKto:
      return kKto;
    case v1::Method::kReward:
      return kReward;
    case v1::Method::kGrpo:
      return kGrpo;
    case v1::Method::kRloo:
      return kRloo;
    case v1::Method::kOnlineDpo:
      return kOnlineDpo;
    case v1::Method::kPpo:
      return kPpo;
    default:
      return {};
  }
}

std::string_view without_eval_prefix(std::string_view name) {
  constexpr std::string_view kPrefix = "eval_";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

std::vector<std::string> evaluation_metrics(const v1::JobSpec& spec) {
  const v1::Method& method = spec.method();
  std::vector<std::string> names{"loss"};
  for (const MethodMetric& metric : metrics_of(method)) names.emplace_back(metric.name);
  const auto add = [&](const auto& more) { names.insert(names.end(), more.begin(), more.end()); };
  if (method.has_online_dpo()) add(kOfPairs);
  if (method.has_ppo()) add(kOfTokens);
  if (method.has_grpo() || method.has_rloo()) add(kOfGroups);
  if (method.has_grpo() || method.has_rloo() || method.has_ppo()) {
    add(kOfCompletions);
    for (const v1::RewardFunc& reward : spec.reward_funcs()) {
      for (const char* of : {"/mean", "/std"}) names.push_back("rewards/" + reward.name() + of);
    }
  }
  names.emplace_back(kAuxLossMetric);
  return names;
}

}  // namespace tessera::spec
