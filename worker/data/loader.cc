#include "worker/data/loader.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "worker/data/rollout_dataset.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

// Fills a batch's tensors document by document.
class BatchBuilder {
 public:
  explicit BatchBuilder(int64_t num_tokens) {
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
    batch_.num_sequences = batch_.documents.num_documents();
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
    batch_.label_rows_L = at::empty({batch_.num_labels}, batch_.labels_T.options());
    batch_.label_documents_L = at::empty({batch_.num_labels}, batch_.labels_T.options());
    auto* row = batch_.label_rows_L.mutable_data_ptr<int64_t>();
    auto* of_row = batch_.label_documents_L.mutable_data_ptr<int64_t>();
    const auto& cu_seqlens = batch_.documents.cu_seqlens;
    for (int64_t document = 0; document < batch_.documents.num_documents(); ++document) {
      for (int64_t i = cu_seqlens[document]; i < cu_seqlens[document + 1]; ++i) {
        if (labels_[i] == kIgnoredLabel) continue;
        *row++ = i;
        *of_row++ = document;
      }
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

at::Tensor floats(const std::vector<float>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

// As transformers finds the token at which a document is scored.
std::vector<int64_t> scored_tokens(const Batch& batch, int64_t padding) {
  const auto* tokens = batch.tokens_T.const_data_ptr<int64_t>();
  std::vector<int64_t> scored;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    const int64_t begin = batch.documents.cu_seqlens[s];
    int64_t last = batch.documents.cu_seqlens[s + 1] - 1;
    while (last > begin && tokens[last] == padding) --last;
    scored.push_back(last);
  }
  return scored;
}

// Tokens that count of each document of a row, the first of a document among them.
void count_completions(const Row& row, std::vector<int64_t>& counts) {
  auto mask = std::span(row.loss_mask);
  for (const int32_t length : row.lengths) {
    counts.push_back(mask.empty() ? length : std::ranges::count(mask.first(length), 1));
    if (!mask.empty()) mask = mask.subspan(length);
  }
}

// Of the row's labels among those of its generation.
void number_labels(const RolloutDataset& rollouts, int64_t index, std::vector<int64_t>& numbers) {
  const int64_t first = rollouts.generation(index).first_label(rollouts.place(index));
  for (int64_t i = 0; i < rollouts.num_labels(index); ++i) numbers.push_back(first + i);
}

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

int64_t Loader::generation_rows() const {
  const RolloutDataset* rollouts = dataset_.rollouts();
  const bool whole = rollouts != nullptr && rollouts->options().whole_generations;
  return whole ? rollouts->options().generation_rows : 0;
}

int64_t Loader::microbatches_from(int64_t row) const {
  const int64_t left = std::max<int64_t>(0, dataset_.size() - row);
  const int64_t rows = microbatch_rows();
  return options_.drop_last ? left / rows : (left + rows - 1) / rows;
}

Batch Loader::microbatch(int64_t epoch, int64_t row) const {
  const OwnerScope scope(Owner::kData);
  const PhaseScope phase(Phase::kData);
  const auto order_of_rows = order(epoch);
  const auto [begin, end] = rows_of_rank(row, options_.rank);
  const auto rows = std::span(*order_of_rows).subspan(begin, end - begin);
  Batch batch = build(dataset_, options_.reference.get(), rows);
  const auto [first, last] = rows_of_all_ranks(row);
  batch.num_rows_of_all = last - first;
  batch.rows_of_rank = row_counts(row);
  if (const Dataset* mismatched = dataset_.mismatched()) {
    Batch other = build(*mismatched, options_.mismatched_reference.get(), rows);
    other.num_rows_of_all = batch.num_rows_of_all;
    other.rows_of_rank = batch.rows_of_rank;
    batch.mismatched = std::make_shared<const Batch>(std::move(other));
  }
  return batch;
}

std::vector<int64_t> Loader::row_counts(int64_t row) const {
  std::vector<int64_t> counts;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const auto [begin, end] = rows_of_rank(row, rank);
    counts.push_back(end - begin);
  }
  return counts;
}

Batch Loader::build(const Dataset& dataset, const ReferenceScores* reference,
                    std::span<const int64_t> rows) const {
  int64_t num_tokens = 0;
  for (const int64_t row : rows) num_tokens += dataset.num_tokens(row);
  // Never empty: this rank has to take part in the collectives.
  BatchBuilder builder(round_up(std::max<int64_t>(num_tokens, 1), options_.pad_to_multiple_of));
  std::vector<float> values, scores;
  std::vector<int64_t> completions, label_numbers;
  for (const int64_t index : rows) {
    const Row row = dataset.row(index);
    builder.add_row(row);
    count_completions(row, completions);
    values.insert(values.end(), row.values.begin(), row.values.end());
    if (const RolloutDataset* rollouts = dataset.rollouts(); rollouts && row.lengths.size() == 1)
      number_labels(*rollouts, index, label_numbers);
    if (reference == nullptr) continue;
    const auto of_row = reference->of_row(index);
    scores.insert(scores.end(), of_row.begin(), of_row.end());
  }
  builder.add_padding(options_.pad_token_id);
  Batch batch = builder.take();
  if (dataset.documents_per_row() == 2)
    batch.completion_tokens_S = at::tensor(completions, at::TensorOptions().dtype(at::kLong));
  if (dataset.rollouts() != nullptr && dataset.documents_per_row() == 1)
    batch.label_numbers_L = at::tensor(label_numbers, at::TensorOptions().dtype(at::kLong));
  if (dataset.has_values()) batch.values_S = floats(values);
  if (reference != nullptr) batch.reference_logps_S = floats(scores);
  if (options_.score_pad_token_id)
    batch.scored_tokens = scored_tokens(batch, *options_.score_pad_token_id);
  return batch;
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
