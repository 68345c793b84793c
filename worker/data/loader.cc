#include "worker/data/loader.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <numeric>

#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// Fills a batch's tensors document by document.
class BatchBuilder {
 public:
  explicit BatchBuilder(int64_t num_tokens) {
    const OwnerScope scope(Owner::kData);
    const PhaseScope phase(Phase::kData);
    const auto options = at::TensorOptions().dtype(at::kLong);
    batch_.tokens_T = at::empty({num_tokens}, options);
    batch_.labels_T = at::empty({num_tokens}, options);
    batch_.documents.positions_T = at::empty({num_tokens}, options);
    batch_.documents.cu_seqlens.push_back(0);
    tokens_ = batch_.tokens_T.mutable_data_ptr<int64_t>();
    labels_ = batch_.labels_T.mutable_data_ptr<int64_t>();
    positions_ = batch_.documents.positions_T.mutable_data_ptr<int64_t>();
  }

  void add_row(const Row& row) {
    auto tokens = std::span(row.tokens);
    auto loss_mask = std::span(row.loss_mask);
    for (const int32_t length : row.lengths) {
      const int64_t begin = at_;
      add_document(tokens.first(length));
      tokens = tokens.subspan(length);
      if (loss_mask.empty()) continue;
      ignore_masked(begin, loss_mask.first(length));
      loss_mask = loss_mask.subspan(length);
    }
    batch_.num_tokens += static_cast<int64_t>(row.tokens.size());
  }

  // One document that nothing is learnt from, up to the end.
  void add_padding(int64_t pad_token_id) {
    const int64_t begin = at_;
    const int64_t size = batch_.tokens_T.numel();
    if (begin == size) return;
    std::fill(tokens_ + begin, tokens_ + size, pad_token_id);
    std::fill(labels_ + begin, labels_ + size, kIgnoredLabel);
    std::iota(positions_ + begin, positions_ + size, int64_t{0});
    end_document(size);
  }

  Batch take() {
    const OwnerScope scope(Owner::kData);
    batch_.label_rows_L = at::empty({batch_.num_labels}, batch_.labels_T.options());
    auto* row = batch_.label_rows_L.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < batch_.tokens_T.numel(); ++i) {
      if (labels_[i] != kIgnoredLabel) *row++ = i;
    }
    return std::move(batch_);
  }

 private:
  // A token's label is the token after it in its document.
  void add_document(std::span<const int32_t> tokens) {
    const auto length = static_cast<int64_t>(tokens.size());
    std::copy(tokens.begin(), tokens.end(), tokens_ + at_);
    std::copy(tokens.begin() + 1, tokens.end(), labels_ + at_);
    labels_[at_ + length - 1] = kIgnoredLabel;
    std::iota(positions_ + at_, positions_ + at_ + length, int64_t{0});
    batch_.num_labels += length - 1;
    end_document(at_ + length);
  }

  // The mask is of tokens, so a label's is that of the token after it.
  void ignore_masked(int64_t begin, std::span<const uint8_t> loss_mask) {
    for (size_t i = 1; i < loss_mask.size(); ++i) {
      if (loss_mask[i] != 0) continue;
      labels_[begin + static_cast<int64_t>(i) - 1] = kIgnoredLabel;
      --batch_.num_labels;
    }
  }

  void end_document(int64_t end) {
    at_ = end;
    batch_.documents.cu_seqlens.push_back(end);
  }

  Batch batch_;
  int64_t* tokens_;
  int64_t* labels_;
  int64_t* positions_;
  int64_t at_ = 0;
};

int64_t round_up(int64_t value, int64_t multiple) {
  return multiple > 0 ? (value + multiple - 1) / multiple * multiple : value;
}

}  // namespace

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset), options_(options) {
  TORCH_CHECK(options.batch_rows > 0 && options.world_size > 0 && options.rank >= 0 &&
                  options.rank < options.world_size,
              "no such deal: ", options.batch_rows, " rows to rank ", options.rank, " of ",
              options.world_size);
}

int64_t Loader::microbatch_rows() const {
  return options_.split_batches ? options_.batch_rows : options_.batch_rows * options_.world_size;
}

int64_t Loader::microbatches_from(int64_t row) const {
  const int64_t left = std::max<int64_t>(0, dataset_.size() - row);
  const int64_t rows = microbatch_rows();
  return options_.drop_last ? left / rows : (left + rows - 1) / rows;
}

Batch Loader::microbatch(int64_t epoch, int64_t row) const {
  const auto rows = order(epoch);
  const auto [begin, end] = rows_of_rank(row, options_.rank);
  int64_t num_tokens = 0;
  for (int64_t i = begin; i < end; ++i) num_tokens += dataset_.num_tokens((*rows)[i]);
  // Never empty: this rank has to take part in the collectives.
  BatchBuilder builder(round_up(std::max<int64_t>(num_tokens, 1), options_.pad_to_multiple_of));
  for (int64_t i = begin; i < end; ++i) builder.add_row(dataset_.row((*rows)[i]));
  builder.add_padding(options_.pad_token_id);
  return builder.take();
}

int64_t Loader::num_labels(int64_t epoch, int64_t row) const {
  const auto rows = order(epoch);
  const auto [begin, end] = rows_of_all_ranks(row);
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += dataset_.num_labels((*rows)[i]);
  return count;
}

int64_t Loader::num_tokens(int64_t epoch, int64_t row) const {
  const auto rows = order(epoch);
  const auto [begin, end] = rows_of_all_ranks(row);
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) count += dataset_.num_tokens((*rows)[i]);
  return count;
}

std::shared_ptr<const Loader::Order> Loader::order(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (cached_epoch_ == epoch) return cached_order_;
  auto order = std::make_shared<Order>(dataset_.size());
  if (options_.shuffle) {
    const OwnerScope scope(Owner::kData);
    const PhaseScope phase(Phase::kData);
    const auto generator =
        at::detail::createCPUGenerator(static_cast<uint64_t>(options_.seed + epoch));
    const auto permutation =
        at::randperm(dataset_.size(), generator, at::TensorOptions().dtype(at::kLong));
    std::copy_n(permutation.const_data_ptr<int64_t>(), dataset_.size(), order->begin());
  } else {
    std::iota(order->begin(), order->end(), int64_t{0});
  }
  cached_epoch_ = epoch;
  cached_order_ = order;
  return order;
}

Loader::Range Loader::rows_of_all_ranks(int64_t row) const {
  return {row, std::min(dataset_.size(), row + microbatch_rows())};
}

Loader::Range Loader::rows_of_rank(int64_t row, int64_t rank) const {
  const auto [begin, end] = rows_of_all_ranks(row);
  if (options_.split_batches) {
    // Even parts, the first ranks taking one more.
    const int64_t part = (end - begin) / options_.world_size;
    const int64_t rest = (end - begin) % options_.world_size;
    const auto part_begin = [&](int64_t r) {
      return begin + r * part + std::min<int64_t>(r, rest);
    };
    return {part_begin(rank), part_begin(rank + 1)};
  }
  const auto part_begin = [&](int64_t r) { return std::min(end, begin + r * options_.batch_rows); };
  return {part_begin(rank), part_begin(rank + 1)};
}

}  // namespace tessera
