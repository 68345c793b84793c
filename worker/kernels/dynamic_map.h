// The 8-bit number format of quantized optimizer states: bitsandbytes' dynamic maps. A code stands
// for a value of [-1, 1] (or [0, 1]); about half of the codes lie above 0.1 in size, and as many as
// each decade can have below.
// Source: bitsandbytes/functional.py, create_dynamic_map.
#pragma once

#include <cstdint>

namespace tessera {

struct DynamicMap {
  static constexpr int kNumCodes = 256;
  bool is_signed;
  int32_t zero;             // its code; those of the sizes go up from it, and down for negatives
  float values[kNumCodes];  // of each code; sorted
  // Sizes are numbered from zero. Those of a decade lie evenly, and so do the midpoints between
  // them: size x of (begin, begin of the next) has the number first + min(last, x * steps -
  // offset), the fraction dropped.
  struct Decade {
    float begin, first, steps, offset, last;
  };
  static constexpr int kNumDecades = 8;  // and what is nearest to 1
  Decade decades[kNumDecades];
};

const DynamicMap& signed_dynamic_map();
const DynamicMap& unsigned_dynamic_map();

}  // namespace tessera
