#include "worker/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace tessera {
namespace {

// A count of steps; below 1 a share of all steps, rounded up.
int64_t count_warmup_steps(const v1::Training& training, int64_t total_steps) {
  const double steps = training.warmup_steps();
  if (steps >= 1) return static_cast<int64_t>(steps);
  const double share = steps > 0 ? steps : training.warmup_ratio();
  return static_cast<int64_t>(std::ceil(static_cast<double>(total_steps) * share));
}

// A count as the divisor of a share of it.
double divisor(int64_t count) { return static_cast<double>(std::max<int64_t>(1, count)); }

double warmup_shape(const std::string& type, double progress) {
  if (type == "cosine") return 0.5 * (1.0 - std::cos(std::numbers::pi * progress));
  if (type == "1-sqrt") return 1.0 - std::sqrt(1.0 - progress);
  return progress;
}

}  // namespace

Schedule::Schedule(const v1::Training& training, int64_t total_steps)
    : training_(training),
      kwargs_(training.lr_scheduler_kwargs()),
      total_steps_(total_steps),
      warmup_steps_(count_warmup_steps(training, total_steps)) {}

double Schedule::factor(int64_t step) const {
  const std::string& type = training_.lr_scheduler_type();
  if (type == "constant") return 1.0;  // it takes no notice of the warm-up
  if (type == "cosine_warmup_with_min_lr") return cosine_warmup_with_min_lr(step);
  if (type == "warmup_stable_decay") return warmup_stable_decay(step);
  if (step < warmup_steps_) return static_cast<double>(step) / divisor(warmup_steps_);
  if (type == "constant_with_warmup") return 1.0;
  if (type == "inverse_sqrt") return inverse_sqrt(step);
  if (type == "polynomial") return polynomial(step);
  const double span = divisor(total_steps_ - warmup_steps_);
  if (type == "linear") return std::max(0.0, static_cast<double>(total_steps_ - step) / span);
  const double progress = static_cast<double>(step - warmup_steps_) / span;
  if (type == "cosine") return std::max(0.0, cosine(num_cycles(), progress));
  if (type == "cosine_with_min_lr") return cosine_with_min_lr(step);
  if (type != "cosine_with_restarts") throw std::logic_error("no schedule of a step: " + type);
  if (progress >= 1.0) return 0.0;
  const double restarts = kwargs_.has_num_cycles() ? kwargs_.num_cycles() : 1;
  return std::max(0.0, cosine(0.5, std::fmod(restarts * progress, 1.0)));
}

double Schedule::num_cycles() const {
  return kwargs_.has_num_cycles() ? kwargs_.num_cycles() : 0.5;
}

double Schedule::min_lr_rate() const {
  return kwargs_.has_min_lr() ? kwargs_.min_lr() / training_.learning_rate()
                              : kwargs_.min_lr_rate();
}

double Schedule::cosine(double num_cycles, double progress) const {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * num_cycles * 2.0 * progress));
}

double Schedule::cosine_with_min_lr(int64_t step) const {
  const double progress =
      static_cast<double>(step - warmup_steps_) / divisor(total_steps_ - warmup_steps_);
  const double low = min_lr_rate();
  return std::max(0.0, cosine(num_cycles(), progress) * (1 - low) + low);
}

// Its warm-up does not begin at zero, and its cosine is one step ahead.
double Schedule::cosine_warmup_with_min_lr(int64_t step) const {
  if (step < warmup_steps_) {
    if (!kwargs_.has_warmup_lr_rate())
      return static_cast<double>(step + 1) / divisor(warmup_steps_);
    const double start = kwargs_.warmup_lr_rate();
    return start + (1.0 - start) * static_cast<double>(step) / divisor(warmup_steps_ - 1);
  }
  return cosine_with_min_lr(step + 1);
}

double Schedule::polynomial(int64_t step) const {
  const double first = training_.learning_rate();
  const double last = kwargs_.has_lr_end() ? kwargs_.lr_end() : 1e-7;
  if (step > total_steps_) return last / first;
  const double power = kwargs_.has_power() ? kwargs_.power() : 1.0;
  const double remaining =
      1 - static_cast<double>(step - warmup_steps_) / divisor(total_steps_ - warmup_steps_);
  return ((first - last) * std::pow(remaining, power) + last) / first;
}

double Schedule::inverse_sqrt(int64_t step) const {
  const int64_t scale = kwargs_.has_timescale() ? kwargs_.timescale()
                        : warmup_steps_ > 0     ? warmup_steps_
                                                : 10'000;
  const int64_t shifted = step + scale - warmup_steps_;
  return 1.0 / std::sqrt(static_cast<double>(shifted) / static_cast<double>(scale));
}

double Schedule::warmup_stable_decay(int64_t step) const {
  const double low = kwargs_.min_lr_ratio();
  const auto above_low = [&](double x) { return std::max(0.0, x * (1.0 - low) + low); };
  if (step < warmup_steps_) {
    const double progress = static_cast<double>(step) / divisor(warmup_steps_);
    return above_low(warmup_shape(kwargs_.warmup_type(), progress));
  }
  const int64_t decay_steps = kwargs_.num_decay_steps();
  const int64_t stable_steps = kwargs_.has_num_stable_steps()
                                   ? kwargs_.num_stable_steps()
                                   : total_steps_ - warmup_steps_ - decay_steps;
  const int64_t decayed = step - warmup_steps_ - stable_steps;
  if (decayed < 0) return 1.0;
  if (decayed >= decay_steps) return low;
  const double progress = static_cast<double>(decayed) / divisor(decay_steps);
  if (kwargs_.decay_type() == "linear") return above_low(1.0 - progress);
  if (kwargs_.decay_type() == "1-sqrt") return above_low(1.0 - std::sqrt(progress));
  return above_low(cosine(num_cycles(), progress));
}

}  // namespace tessera
