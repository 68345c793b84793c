#include "worker/objectives/objective.h"

#include <stdexcept>

namespace tessera {

Objective::Objective(const v1::JobSpec& spec, Mean mean) : mean_(mean), metrics_{{kLossMetric}} {
  const auto measured = spec::metrics_of(spec.method());
  metrics_.insert(metrics_.end(), measured.begin(), measured.end());
}

ObjectiveOutput Objective::run_value(const Models&, const Batch&, const StepShare&) const {
  throw std::logic_error("the method trains no value model");
}

std::unique_ptr<Objective> make_objective(const v1::JobSpec& spec, Collectives& data) {
  switch (spec.method().kind_case()) {
    case v1::Method::kSft:
      return make_sft(spec);
    case v1::Method::kDpo:
      return make_dpo(spec, data);
    case v1::Method::kKto:
      return make_kto(spec, data);
    case v1::Method::kReward:
      return make_reward(spec, data);
    case v1::Method::kGkd:
      return make_gkd(spec);
    case v1::Method::kGrpo:
      return make_grpo(spec, data);
    case v1::Method::kRloo:
      return make_rloo(spec, data);
    case v1::Method::kOnlineDpo:
      return make_online_dpo(spec);
    case v1::Method::kPpo:
      return make_ppo(spec, data);
    default:
      break;
  }
  throw std::logic_error("the spec was not validated: it has no method that is built");
}

}  // namespace tessera
