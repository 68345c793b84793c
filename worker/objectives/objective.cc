#include "worker/objectives/objective.h"

#include <stdexcept>

namespace tessera {

Objective::Objective(const v1::JobSpec& spec, Mean mean) : mean_(mean), metrics_{{kLossMetric}} {
  const auto measured = spec::metrics_of(spec.method());
  metrics_.insert(metrics_.end(), measured.begin(), measured.end());
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
    default:
      break;
  }
  throw std::logic_error("the spec was not validated: it has no method that is built");
}

}  // namespace tessera
