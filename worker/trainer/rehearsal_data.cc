#include "worker/trainer/rehearsal_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "worker/errors.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"
#include "worker/trainer/epochs.h"
#include "worker/trainer/input.h"

namespace tessera {
namespace {

// An epoch is a new order of the same rows: after so many rows another one hardly brings a heavier
// microbatch.
constexpr int64_t kMaxScannedRows = int64_t{1} << 24;

// The sizes of rows, as they were read once: a Dataset's answers, quick to get.
class RowSizes final : public Dataset {
 public:
  explicit RowSizes(std::unique_ptr<Dataset> inner) : inner_(std::move(inner)) {
    sizes_.reserve(inner_->size());
    for (int64_t i = 0; i < inner_->size(); ++i)
      sizes_.emplace_back(inner_->num_tokens(i), inner_->num_labels(i));
  }
  int64_t size() const override { return std::ssize(sizes_); }
  Row row(int64_t index) const override { return inner_->row(index); }
  int64_t num_tokens(int64_t index) const override { return sizes_[index].first; }
  int64_t num_labels(int64_t index) const override { return sizes_[index].second; }

 private:
  std::unique_ptr<Dataset> inner_;
  std::vector<std::pair<int32_t, int32_t>> sizes_;
};

int64_t row_length(const v1::JobSpec& spec, const ModelConfig& config) {
  const int64_t wanted = spec.method().sft().max_length();
  return wanted > 0 ? wanted : std::max<int64_t>(1, config.rope.max_positions);
}

// Adds a document that nothing is learnt from, as the loader does.
void pad(MicrobatchShape& shape, int64_t multiple) {
  const int64_t tokens = std::max<int64_t>(1, shape.cu_seqlens.back());
  const int64_t padded = multiple > 0 ? (tokens + multiple - 1) / multiple * multiple : tokens;
  if (padded > shape.cu_seqlens.back()) shape.cu_seqlens.push_back(padded);
}

MicrobatchShape full_rows(int64_t rows, int64_t length, int64_t pad_to_multiple_of) {
  MicrobatchShape shape{{0}, rows * length, rows * (length - 1)};
  for (int64_t i = 1; i <= rows; ++i) shape.cu_seqlens.push_back(i * length);
  pad(shape, pad_to_multiple_of);
  return shape;
}

// Finds the heaviest microbatches among those that a loader deals.
class Search {
 public:
  Search(const Dataset& dataset, const LoaderOptions& options)
      : dataset_(dataset), options_(options), loader_(dataset, options) {}

  const Loader& loader() const { return loader_; }

  // Microbatches of the epoch, those of a step `per_step`; at most `most` of them.
  void scan(int64_t epoch, int64_t per_step, int64_t most) {
    const int64_t count = std::min(most, loader_.microbatches_per_epoch());
    for (int64_t i = 0; i < count; ++i) {
      for (int rank = 0; rank < options_.world_size; ++rank)
        weigh(epoch, i * loader_.microbatch_rows(), rank, i % per_step == 0 ? first_ : later_);
    }
  }

  HeaviestMicrobatches found() const {
    HeaviestMicrobatches heaviest;
    heaviest.rank = std::max(first_, later_).rank;
    heaviest.first = shape_of(first_);
    if (later_.num_tokens >= 0) heaviest.later = shape_of(later_);
    return heaviest;
  }

 private:
  struct Found {
    int64_t num_tokens = -1;  // nothing
    int64_t num_labels = 0;
    int64_t epoch = 0, row = 0;
    int rank = 0;

    bool operator<(const Found& other) const {
      return std::tie(num_tokens, num_labels) < std::tie(other.num_tokens, other.num_labels);
    }
  };

  void weigh(int64_t epoch, int64_t row, int rank, Found& heaviest) {
    Found found{0, 0, epoch, row, rank};
    loader_.each_row(epoch, row, rank, [&](int64_t index) {
      found.num_tokens += dataset_.num_tokens(index);
      found.num_labels += dataset_.num_labels(index);
    });
    if (heaviest < found) heaviest = found;
  }

  MicrobatchShape shape_of(const Found& found) const {
    MicrobatchShape shape{{0}, found.num_tokens, found.num_labels};
    loader_.each_row(found.epoch, found.row, found.rank, [&](int64_t index) {
      for (const int32_t length : dataset_.row(index).lengths)
        shape.cu_seqlens.push_back(shape.cu_seqlens.back() + length);
    });
    pad(shape, options_.pad_to_multiple_of);
    return shape;
  }

  const Dataset& dataset_;
  const LoaderOptions options_;
  const Loader loader_;
  Found first_, later_;
};

int64_t batch_rows_of_rank(const LoaderOptions& options) {
  if (!options.split_batches) return options.batch_rows;
  return (options.batch_rows + options.world_size - 1) / options.world_size;
}

}  // namespace

Batch MicrobatchShape::batch(at::Device device) const {
  const OwnerScope scope(Owner::kData);
  const auto options = at::TensorOptions(host_device(device)).dtype(at::kLong);
  const int64_t size = cu_seqlens.back();
  Batch batch;
  batch.tokens_T = at::empty({size}, options);
  batch.labels_T = at::empty({size}, options);
  batch.documents.positions_T = at::empty({size}, options);
  batch.label_rows_L = at::empty({num_labels}, options);
  batch.documents.cu_seqlens = cu_seqlens;
  batch.num_tokens = num_tokens;
  batch.num_labels = num_labels;
  return batch;
}

const Dataset* RehearsalData::find(const v1::JobSpec& spec, bool held_out,
                                   const ModelConfig& config) {
  const std::string key = std::to_string(held_out) + spec.data().SerializeAsString() +
                          spec.method().SerializeAsString() + spec.model().SerializeAsString() +
                          std::to_string(spec.training().seed());
  const auto [place, is_new] = datasets_.try_emplace(key);
  if (!is_new) return place->second.get();
  try {
    place->second =
        std::make_unique<RowSizes>(read_documents(spec, held_out, config.vocab_size, reports_));
  } catch (const UserError&) {
    // Full rows then, which every row fits in.
  }
  return place->second.get();
}

HeaviestMicrobatches RehearsalData::training(const v1::JobSpec& spec, const ModelConfig& config) {
  const v1::Training& training = spec.training();
  const LoaderOptions options = loader_options(spec, /*held_out=*/false, config, /*rank=*/0,
                                               spec.parallelism().num_processes());
  const int64_t accumulation = training.gradient_accumulation_steps();
  const Dataset* dataset = find(spec, /*held_out=*/false, config);
  if (dataset == nullptr) {
    HeaviestMicrobatches full;
    full.first = full_rows(batch_rows_of_rank(options), row_length(spec, config),
                           options.pad_to_multiple_of);
    if (accumulation > 1) full.later = full.first;
    full.microbatches_per_step = accumulation;
    full.total_steps = training.max_steps();
    return full;
  }
  Search search(*dataset, options);
  const Epochs epochs(search.loader(), accumulation);
  const int64_t steps = epochs.total_steps(training, 0, epochs.normal({}));
  const int64_t per_epoch = search.loader().microbatches_per_epoch();
  int64_t left = steps * accumulation;
  for (int64_t epoch = 0, rows = 0; left > 0 && per_epoch > 0; ++epoch) {
    search.scan(epoch, accumulation, left);
    left -= (per_epoch + accumulation - 1) / accumulation * accumulation;
    rows += dataset->size();
    if (!options.shuffle || rows > kMaxScannedRows) break;
  }
  HeaviestMicrobatches found = search.found();
  found.microbatches_per_step = std::min(accumulation, per_epoch);
  found.total_steps = steps;
  return found;
}

HeaviestMicrobatches RehearsalData::held_out(const v1::JobSpec& spec, const ModelConfig& config) {
  const LoaderOptions options = loader_options(spec, /*held_out=*/true, config, /*rank=*/0,
                                               spec.parallelism().num_processes());
  const Dataset* dataset = find(spec, /*held_out=*/true, config);
  if (dataset == nullptr) {
    HeaviestMicrobatches full;
    full.first = full_rows(batch_rows_of_rank(options), row_length(spec, config),
                           options.pad_to_multiple_of);
    return full;
  }
  Search search(*dataset, options);
  search.scan(/*epoch=*/0, /*per_step=*/1, search.loader().microbatches_per_epoch());
  return search.found();
}

}  // namespace tessera
