// Which steps are logged, evaluated and saved.
#pragma once

#include <cstdint>

#include "tessera/v1/job.pb.h"

namespace tessera {

// What follows a step.
struct Due {
  bool log = false;
  bool evaluate = false;
  bool save = false;
};

class Cadence {
 public:
  // `has_eval`: there are documents to evaluate on.
  Cadence(const v1::Training& training, int64_t total_steps, bool has_eval);

  // After step `step`, from 1.
  Due after_step(int64_t step) const;

 private:
  const v1::Training& training_;
  int64_t total_steps_;
  bool has_eval_;
};

}  // namespace tessera
