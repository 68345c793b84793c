// How an epoch's rows make steps. An epoch may have been begun with other batches than now (a run
// that goes on with another number of ranks), so all of it counts from a row, not from a step.
#pragma once

#include <cstdint>

#include "tessera/v1/job.pb.h"
#include "worker/data/loader.h"

namespace tessera {

// Where in the data the next step begins.
struct Cursor {
  int32_t epoch = 0;
  int64_t row = 0;
};

class Epochs {
 public:
  // The loader outlives this.
  Epochs(const Loader& loader, int64_t accumulation)
      : loader_(loader), accumulation_(accumulation) {}

  // Microbatches of the step that begins at `row`: those left of the epoch may be fewer than asked.
  int64_t microbatches_of_step(int64_t row) const;
  // Steps from `row` to the end of its epoch.
  int64_t steps_from(int64_t row) const;
  // The cursor itself, or the next epoch's where drop_last leaves nothing of this one.
  Cursor normal(const Cursor& cursor) const;
  // Where the step after `num_microbatches` more begins.
  Cursor after(Cursor cursor, int64_t num_microbatches) const;
  // The metric `epoch`: whole epochs, and the share of this one's microbatches.
  double progress(const Cursor& cursor) const;
  // Steps of the whole run, of which `step` are taken and led to `cursor`.
  int64_t total_steps(const v1::Training& training, int64_t step, const Cursor& cursor) const;

 private:
  const Loader& loader_;
  int64_t accumulation_;
};

}  // namespace tessera
