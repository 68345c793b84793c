// The deal of a dataset's rows to ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "worker/batch.h"
#include "worker/data/dataset.h"
#include "worker/data/reference_scores.h"

namespace tessera {

struct LoaderOptions {
  int64_t batch_rows = 8;  // a rank's rows in a microbatch; with split_batches, those of all ranks
  bool split_batches = false;
  int rank = 0;         // among the data-parallel ranks: those that get rows of their own
  int world_size = 1;   // of these
  bool shuffle = true;  // else file order
  // The dataset's own order is one that the seed decides.
  bool is_shuffled_already = false;
  int64_t seed = 42;
  bool drop_last = false;
  int64_t pad_to_multiple_of = 0;
  int64_t pad_token_id = 0;  // of tokens that are padding; any id of the model does
  // Batch::scored_tokens are the last of each sequence but for these at its end (all of it: its
  // first). Absent: they are not looked for.
  std::optional<int64_t> score_pad_token_id = {};
  // Scores of the dataset, and of dataset.mismatched(); null: none were computed beforehand.
  std::shared_ptr<const ReferenceScores> reference, mismatched_reference;
};

// Deals rows to ranks. It has no state but a cache: a microbatch is addressed by the epoch and the
// first of its rows in the epoch's order. That is the whole cursor of a resumed run, and it means
// the same whatever the number of ranks or the size of batches. The order of an epoch is that of
// accelerate's SeedableRandomSampler: torch.randperm from a generator seeded with seed + epoch.
// Rows that do not fill the last microbatch evenly are dealt out once, never repeated; ranks left
// without rows get an empty (padded) batch. Thread safe. Tensors are charged to Owner::kData.
class Loader {
 public:
  // The dataset outlives this.
  Loader(const Dataset& dataset, const LoaderOptions& options);

  int64_t num_rows() const { return dataset_.size(); }
  // Rows of completions that are compared with each other; 0: none are.
  int64_t generation_rows() const;
  bool shuffles() const { return options_.shuffle || options_.is_shuffled_already; }
  // Rows of all ranks in a microbatch; the last of an epoch may have fewer.
  int64_t microbatch_rows() const;
  // Microbatches of an epoch from row `row` on, that left out which drop_last drops.
  int64_t microbatches_from(int64_t row) const;
  int64_t microbatches_per_epoch() const { return microbatches_from(0); }
  // Calls visit(index) for each of the dataset's rows that `rank` gets of the microbatch that
  // begins with row `row`.
  template <typename Visit>
  void each_row(int64_t epoch, int64_t row, int rank, const Visit& visit) const {
    const auto rows = order(epoch);
    const auto [begin, end] = rows_of_rank(row, rank);
    for (int64_t i = begin; i < end; ++i) visit((*rows)[i]);
  }
  // How many rows each rank gets of that microbatch.
  std::vector<int64_t> row_counts(int64_t row) const;
  // This rank's part of the microbatch that begins with row `row`.
  Batch microbatch(int64_t epoch, int64_t row) const;
  // Labels in the whole microbatch, over all ranks; needs no communication.
  int64_t num_labels(int64_t epoch, int64_t row) const;
  // Tokens in the whole microbatch, over all ranks, padding not counted.
  int64_t num_tokens(int64_t epoch, int64_t row) const;

 private:
  using Order = std::vector<int64_t>;
  // A stretch of an epoch's order.
  struct Range {
    int64_t begin;
    int64_t end;
  };

  std::shared_ptr<const Order> order(int64_t epoch) const;
  // Of the rows of `dataset`: dataset_, or that of its mismatched rows.
  Batch build(const Dataset& dataset, const ReferenceScores* reference,
              std::span<const int64_t> rows) const;
  Range rows_of_all_ranks(int64_t row) const;
  Range rows_of_rank(int64_t row, int64_t rank) const;

  const Dataset& dataset_;
  const LoaderOptions options_;

  mutable std::mutex mutex_;
  mutable int64_t cached_epoch_ = -1;
  mutable std::shared_ptr<const Order> cached_order_;
};

}  // namespace tessera
