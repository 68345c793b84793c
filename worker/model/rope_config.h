// What config.json says of rotary positions.
#pragma once

#include <cstdint>

#include "worker/model/config_reader.h"

namespace tessera {

struct RopeConfig {
  enum class Type { kDefault, kLinear, kDynamic, kLlama3, kYarn };
  Type type = Type::kDefault;
  double theta = 10000;                // base of the wavelengths
  double factor = 1;                   // all but kDefault: how many times longer documents may get
  int64_t max_positions = 0;           // kDynamic: documents up to this length are not scaled
  int64_t original_max_positions = 0;  // kLlama3, kYarn: longest document before scaling
  double low_freq_factor = 1;          // kLlama3
  double high_freq_factor = 4;
  double beta_fast = 32;  // kYarn
  double beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;  // kYarn: what cosines and sines are multiplied by
};

// Reads transformers 5's `rope_parameters` or the older `rope_scaling` and `rope_theta`; where both
// are given the older wins, as in transformers. Throws UserError naming the field at fault.
RopeConfig read_rope_config(const ConfigObject& root, double default_theta, int64_t max_positions);

}  // namespace tessera
