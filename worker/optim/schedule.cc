#include "worker/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera {

Schedule::Schedule(const v1::Training& training, int64_t total_steps)
    : base_rate_(training.learning_rate()), total_steps_(total_steps) {
  const std::string& type = training.lr_scheduler_type();
  kind_ = type == "linear" ? Kind::kLinear : type == "cosine" ? Kind::kCosine : Kind::kConstant;
  // Below 1 it is a share of all steps, rounded up.
  const double warmup = training.warmup_steps();
  warmup_steps_ = static_cast<int64_t>(std::ceil(warmup < 1 ? warmup * total_steps : warmup));
  // transformers' plain "constant" takes no notice of warm-up.
  if (type == "constant") warmup_steps_ = 0;
}

double Schedule::learning_rate(int64_t step) const {
  if (step < warmup_steps_) return base_rate_ * step / std::max<int64_t>(1, warmup_steps_);
  const double span = std::max<int64_t>(1, total_steps_ - warmup_steps_);
  switch (kind_) {
    case Kind::kConstant:
      return base_rate_;
    case Kind::kLinear:
      return base_rate_ * std::max(0.0, (total_steps_ - step) / span);
    case Kind::kCosine: {
      const double progress = (step - warmup_steps_) / span;
      return base_rate_ * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
    }
  }
  return base_rate_;
}

}  // namespace tessera
