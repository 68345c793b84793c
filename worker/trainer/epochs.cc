#include "worker/trainer/epochs.h"

#include <algorithm>
#include <cmath>

namespace tessera {

int64_t Epochs::microbatches_of_step(int64_t row) const {
  return std::min(accumulation_, loader_.microbatches_from(row));
}

int64_t Epochs::steps_from(int64_t row) const {
  return (loader_.microbatches_from(row) + accumulation_ - 1) / accumulation_;
}

Cursor Epochs::normal(const Cursor& cursor) const {
  return loader_.microbatches_from(cursor.row) > 0 ? cursor : Cursor{cursor.epoch + 1, 0};
}

Cursor Epochs::after(Cursor cursor, int64_t num_microbatches) const {
  cursor.row += num_microbatches * loader_.microbatch_rows();
  return normal(cursor);
}

double Epochs::progress(const Cursor& cursor) const {
  const int64_t per_epoch = loader_.microbatches_per_epoch();
  const int64_t done = per_epoch - loader_.microbatches_from(cursor.row);
  return cursor.epoch + static_cast<double>(done) / static_cast<double>(per_epoch);
}

int64_t Epochs::total_steps(const v1::Training& training, int64_t step,
                            const Cursor& cursor) const {
  if (training.max_steps() > 0) return training.max_steps();
  const int64_t per_epoch = steps_from(0);
  const auto wanted =
      static_cast<int64_t>(std::ceil(training.num_train_epochs() * static_cast<double>(per_epoch)));
  // Without a change of batches this is `step`.
  const int64_t done = (cursor.epoch + 1) * per_epoch - steps_from(cursor.row);
  return step + std::max<int64_t>(0, wanted - done);
}

}  // namespace tessera
