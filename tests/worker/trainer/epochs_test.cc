#include "worker/trainer/epochs.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

class RowsOnly final : public Dataset {
 public:
  explicit RowsOnly(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  Row row(int64_t) const override { return {}; }
  int64_t num_tokens(int64_t) const override { return 1; }
  int64_t num_labels(int64_t) const override { return 1; }

 private:
  int64_t size_;
};

v1::Training epochs(double count) {
  v1::Training training;
  training.set_max_steps(-1);
  training.set_num_train_epochs(count);
  return training;
}

// Runs from a cursor to the end; returns where `steps` of them lead.
Cursor after_steps(const Epochs& epochs, Cursor cursor, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    cursor = epochs.after(cursor, epochs.microbatches_of_step(cursor.row));
  }
  return cursor;
}

TEST(Epochs, AnEpochEndsWithWhatIsLeft) {
  const RowsOnly data(23);
  const Loader loader(data, {.batch_rows = 4});  // 6 microbatches
  const Epochs steps(loader, 4);
  EXPECT_EQ(steps.steps_from(0), 2);
  EXPECT_EQ(steps.microbatches_of_step(0), 4);
  EXPECT_EQ(steps.microbatches_of_step(16), 2);
  const Cursor next = after_steps(steps, {}, 2);
  EXPECT_EQ(next.epoch, 1);
  EXPECT_EQ(next.row, 0);
  EXPECT_EQ(steps.progress({2, 16}), 2 + 4.0 / 6);
}

TEST(Epochs, ARunCountsTheSameFromAnyOfItsSteps) {
  const RowsOnly data(53);
  for (const bool drop_last : {false, true}) {
    for (const int64_t accumulation : {1, 3}) {
      const Loader loader(data, {.batch_rows = 4, .drop_last = drop_last});
      const Epochs steps(loader, accumulation);
      for (const double count : {0.4, 1.0, 2.5}) {
        const int64_t total = steps.total_steps(epochs(count), 0, {});
        for (int64_t step = 0; step <= total; ++step) {
          EXPECT_EQ(steps.total_steps(epochs(count), step, after_steps(steps, {}, step)), total);
        }
      }
    }
  }
}

// 3 epochs of 48 rows: 5 steps of 16 rows are 1 epoch and 32 rows, and then 16 + 48 are left.
TEST(Epochs, OtherBatchesMakeUpTheSameEpochs) {
  const RowsOnly data(48);
  const Loader wide(data, {.batch_rows = 4, .world_size = 4});
  const Cursor cursor = after_steps(Epochs(wide, 1), {}, 5);
  EXPECT_EQ(cursor.epoch, 1);
  EXPECT_EQ(cursor.row, 32);
  const Loader narrow(data, {.batch_rows = 4, .world_size = 2});
  const Epochs steps(narrow, 1);
  EXPECT_EQ(steps.total_steps(epochs(3), 5, cursor), 5 + 16 / 8 + 48 / 8);
  // Beyond its end there is nothing to do.
  EXPECT_EQ(steps.total_steps(epochs(1), 5, cursor), 5);
  // Not at a border: 5 rows are left, of which one microbatch is made.
  EXPECT_EQ(steps.steps_from(43), 1);
  EXPECT_EQ(steps.total_steps(epochs(2), 5, {1, 43}), 6);
}

}  // namespace
}  // namespace tessera
