#include "worker/trainer/rehearsal_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "worker/errors.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"
#include "worker/trainer/epochs.h"
#include "worker/trainer/input.h"

namespace tessera {

struct RowSize {
  int32_t num_tokens, num_labels, longest;  // the last: of its documents
};

// Reads the sizes of rows once, which then are quick to get.
class RowSizes final : public Dataset {
 public:
  explicit RowSizes(std::unique_ptr<Dataset> inner) : inner_(std::move(inner)) {
    sizes_.reserve(inner_->size());
    for (int64_t i = 0; i < inner_->size(); ++i) {
      sizes_.push_back({static_cast<int32_t>(inner_->num_tokens(i)),
                        static_cast<int32_t>(inner_->num_labels(i)),
                        std::ranges::max(inner_->lengths(i))});
    }
  }
  const RowSize& size_of(int64_t index) const { return sizes_[index]; }

  int64_t size() const override { return std::ssize(sizes_); }
  Row row(int64_t index) const override { return inner_->row(index); }
  int64_t num_tokens(int64_t index) const override { return sizes_[index].num_tokens; }
  int64_t num_labels(int64_t index) const override { return sizes_[index].num_labels; }
  std::vector<int32_t> lengths(int64_t index) const override { return inner_->lengths(index); }

 private:
  std::unique_ptr<Dataset> inner_;
  std::vector<RowSize> sizes_;
};

namespace {

// An epoch is a new order of the same rows: after so many rows another one hardly brings a heavier
// microbatch.
constexpr int64_t kMaxScannedRows = int64_t{1} << 24;

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
  MicrobatchShape shape{{0}, rows * length, rows * (length - 1), /*place=*/0};
  for (int64_t i = 1; i <= rows; ++i) shape.cu_seqlens.push_back(i * length);
  pad(shape, pad_to_multiple_of);
  return shape;
}

struct Found {
  int64_t num_tokens = -1;  // nothing
  int64_t num_labels = 0, longest = 0;
  int64_t epoch = 0, row = 0, place = 0;
  int rank = 0;
};

// What may weigh most, what comes next where that is equal.
constexpr std::array kWeights = {
    +[](const Found& f) { return std::array{f.num_tokens, f.num_labels, f.longest, f.place}; },
    +[](const Found& f) { return std::array{f.num_labels, f.num_tokens, f.longest, f.place}; },
    +[](const Found& f) { return std::array{f.longest, f.num_tokens, f.num_labels, f.place}; },
};
using Heaviest = std::array<Found, kWeights.size()>;  // by each

// Finds the heaviest microbatches among those that a loader deals.
class Search {
 public:
  Search(const RowSizes& rows, const LoaderOptions& options)
      : rows_(rows), options_(options), loader_(rows, options) {}

  const Loader& loader() const { return loader_; }

  // Microbatches of the epoch, those of a step `per_step`; at most `most` of them. Those that begin
  // a step are told apart where `steps` is true.
  void scan(int64_t epoch, int64_t per_step, int64_t most, bool steps) {
    const int64_t count = std::min(most, loader_.microbatches_per_epoch());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = i * loader_.microbatch_rows(), place = i % per_step;
      for (int rank = 0; rank < options_.world_size; ++rank)
        weigh(size_of(epoch, row, rank, place), steps && place > 0 ? later_ : first_);
    }
  }

  HeaviestMicrobatches found() const {
    HeaviestMicrobatches heaviest;
    const bool is_later = later_[0].num_tokens > first_[0].num_tokens;
    heaviest.rank = is_later ? later_[0].rank : first_[0].rank;
    for (size_t i = 0; i < kWeights.size(); ++i) {
      HeavyStep step{shape_of(first_[i]), shape_of(later_[i])};
      if (std::ranges::find(heaviest.steps, step) == heaviest.steps.end())
        heaviest.steps.push_back(std::move(step));
    }
    return heaviest;
  }

 private:
  Found size_of(int64_t epoch, int64_t row, int rank, int64_t place) const {
    Found found{0, 0, 0, epoch, row, place, rank};
    loader_.each_row(epoch, row, rank, [&](int64_t index) {
      const RowSize& size = rows_.size_of(index);
      found.num_tokens += size.num_tokens;
      found.num_labels += size.num_labels;
      found.longest = std::max<int64_t>(found.longest, size.longest);
    });
    return found;
  }

  static void weigh(const Found& found, Heaviest& heaviest) {
    for (size_t i = 0; i < kWeights.size(); ++i) {
      if (kWeights[i](heaviest[i]) < kWeights[i](found)) heaviest[i] = found;
    }
  }

  MicrobatchShape shape_of(const Found& found) const {
    if (found.num_tokens < 0) return {};
    MicrobatchShape shape{{0}, found.num_tokens, found.num_labels, found.place};
    loader_.each_row(found.epoch, found.row, found.rank, [&](int64_t index) {
      for (const int32_t length : rows_.lengths(index))
        shape.cu_seqlens.push_back(shape.cu_seqlens.back() + length);
    });
    pad(shape, options_.pad_to_multiple_of);
    return shape;
  }

  const RowSizes& rows_;
  const LoaderOptions options_;
  const Loader loader_;
  Heaviest first_, later_;
};

int64_t batch_rows_of_rank(const LoaderOptions& options) {
  if (!options.split_batches) return options.batch_rows;
  return (options.batch_rows + options.world_size - 1) / options.world_size;
}

HeaviestMicrobatches of_full_rows(const LoaderOptions& options, int64_t length,
                                  int64_t accumulation) {
  HeavyStep step;
  step.first = full_rows(batch_rows_of_rank(options), length, options.pad_to_multiple_of);
  if (accumulation > 1) {
    step.later = step.first;
    step.later.place = accumulation - 1;
  }
  return {.steps = {step}, .microbatches_per_step = accumulation};
}

std::string key_of_rows(const v1::JobSpec& spec, bool held_out) {
  v1::JobSpec key;
  *key.mutable_data() = spec.data();
  *key.mutable_method() = spec.method();
  *key.mutable_model() = spec.model();
  key.mutable_training()->set_seed(spec.training().seed());
  return std::to_string(held_out) + key.SerializeAsString();
}

// Also what deals rows to microbatches, in all of the run.
std::string key_of_microbatches(const v1::JobSpec& spec, bool held_out) {
  return key_of_rows(spec, held_out) + spec.training().SerializeAsString() +
         std::to_string(spec.parallelism().num_processes());
}

}  // namespace

RehearsalData::RehearsalData(Reports reports) : reports_(std::move(reports)) {}
RehearsalData::~RehearsalData() = default;

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

const RowSizes* RehearsalData::rows_of(const v1::JobSpec& spec, bool held_out,
                                       const ModelConfig& config) {
  const auto [place, is_new] = rows_.try_emplace(key_of_rows(spec, held_out));
  if (!is_new) return place->second.get();
  try {
    place->second =
        std::make_unique<RowSizes>(read_documents(spec, held_out, config.vocab_size, reports_));
  } catch (const UserError&) {
    // Full rows then, which every row fits in.
  }
  return place->second.get();
}

const HeaviestMicrobatches& RehearsalData::training(const v1::JobSpec& spec,
                                                    const ModelConfig& config) {
  const auto [place, is_new] = heaviest_.try_emplace(key_of_microbatches(spec, false));
  if (is_new) place->second = search_training(spec, config);
  return place->second;
}

const HeaviestMicrobatches& RehearsalData::held_out(const v1::JobSpec& spec,
                                                    const ModelConfig& config) {
  const auto [place, is_new] = heaviest_.try_emplace(key_of_microbatches(spec, true));
  if (is_new) place->second = search_held_out(spec, config);
  return place->second;
}

HeaviestMicrobatches RehearsalData::search_training(const v1::JobSpec& spec,
                                                    const ModelConfig& config) {
  const v1::Training& training = spec.training();
  const LoaderOptions options = loader_options(spec, /*held_out=*/false, config, /*rank=*/0,
                                               spec.parallelism().num_processes());
  const int64_t accumulation = training.gradient_accumulation_steps();
  const RowSizes* rows = rows_of(spec, /*held_out=*/false, config);
  HeaviestMicrobatches full = of_full_rows(options, row_length(spec, config), accumulation);
  full.total_steps = training.max_steps();
  if (rows == nullptr) return full;
  Search search(*rows, options);
  const Epochs epochs(search.loader(), accumulation);
  const int64_t steps = epochs.total_steps(training, 0, epochs.normal({}));
  const int64_t per_epoch = search.loader().microbatches_per_epoch();
  if (steps == 0 || per_epoch == 0) return full;
  int64_t left = steps * accumulation;
  for (int64_t epoch = 0, scanned = 0; left > 0; ++epoch) {
    search.scan(epoch, accumulation, left, /*steps=*/true);
    left -= (per_epoch + accumulation - 1) / accumulation * accumulation;
    scanned += rows->size();
    if (!options.shuffle || scanned > kMaxScannedRows) break;
  }
  HeaviestMicrobatches found = search.found();
  found.microbatches_per_step = std::min(accumulation, per_epoch);
  found.total_steps = steps;
  return found;
}

HeaviestMicrobatches RehearsalData::search_held_out(const v1::JobSpec& spec,
                                                    const ModelConfig& config) {
  const LoaderOptions options = loader_options(spec, /*held_out=*/true, config, /*rank=*/0,
                                               spec.parallelism().num_processes());
  const RowSizes* rows = rows_of(spec, /*held_out=*/true, config);
  if (rows == nullptr) return of_full_rows(options, row_length(spec, config), /*accumulation=*/1);
  Search search(*rows, options);
  const int64_t count = search.loader().microbatches_per_epoch();
  search.scan(/*epoch=*/0, /*per_step=*/count, /*most=*/count, /*steps=*/false);
  return search.found();
}

}  // namespace tessera
