// The metrics of each method, by TRL's names: what step and evaluation events hold beside the loss.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/v1/job.pb.h"

namespace tessera::spec {

struct MethodMetric {
  const char* name;
  // A microbatch that has nothing to measure it of is left out of the mean. Else it counts as 0.
  bool may_lack = false;
};

// Of a mixture of experts whose load-balancing loss counts, there is aux_loss beside them.
inline constexpr char kAuxLossMetric[] = "aux_loss";

// Empty: no method is set.
std::span<const MethodMetric> metrics_of(const v1::Method& method);

// A metric's name as TRL has it of an evaluation, without the "eval_" in front, if it is there.
std::string_view without_eval_prefix(std::string_view name);

// The names that evaluations of the job may have, loss and aux_loss among them.
std::vector<std::string> evaluation_metrics(const v1::JobSpec& spec);

}  // namespace tessera::spec
