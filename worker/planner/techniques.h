// What can be done about a job's memory: the knobs a plan turns, and their settings.
#pragma once

#include <string>
#include <vector>

#include "tessera/v1/plan.pb.h"

namespace tessera {

// One setting of a knob.
struct Setting {
  std::string title;  // "gradient checkpointing: full"
  std::vector<v1::FieldChange> changes;
  bool exact = true;  // the loss stays the job's but for rounding
};

// Settings that exclude each other.
struct Knob {
  std::string name;
  std::vector<Setting> settings;
};

// The knobs that mean something to the job, with those settings that it does not have already and
// that are allowed beside all else it sets. Requires a spec with defaults filled in. A new
// technique is a row in techniques.cc.
std::vector<Knob> knobs_of(const v1::JobSpec& spec);

// The job with the setting's fields changed. Requires a setting of knobs_of().
v1::JobSpec with_setting(v1::JobSpec spec, const Setting& setting);

// Whether the spec breaks no rule.
bool is_allowed(const v1::JobSpec& spec);

}  // namespace tessera
