// Makes plans of rehearsals: what a job needs, what would make it fit, and what fits and is
// fastest.
#pragma once

#include <functional>
#include <optional>

#include "tessera/v1/plan.pb.h"
#include "worker/planner/device_rates.h"

namespace tessera {

struct PlannerTools {
  // Of a valid spec with defaults filled in. Throws UserError where the job cannot be run so.
  std::function<v1::Rehearsal(const v1::JobSpec&)> rehearse;
  // Seconds that went by, on any clock that goes forward.
  std::function<double()> seconds;
  // Of the device; absent: times are not predicted, and of what fits the plan that changes least is
  // chosen.
  std::optional<DeviceRates> rates;
};

// Most rehearsals of one plan.
inline constexpr int kMaxRehearsals = 400;

// `device_memory_bytes`: of the rank's device; 0: not known, everything fits. The spec of the
// request already is for the request's world size and device. Throws UserError: the spec breaks a
// rule, or the job as written cannot be run.
//
// Alternatives change one knob of the job as written. The choice is looked for among all
// combinations of exact settings that change no field which the request's spec sets: from the
// predictions that single settings sum up to, the fastest combinations that should fit are
// rehearsed, and the best of those is improved one knob at a time until no change makes it better.
v1::Plan make_plan(const v1::PlanRequest& request, int64_t device_memory_bytes,
                   const PlannerTools& tools);

}  // namespace tessera
