#include "worker/trainer/rehearsal_data.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>

#include "proto/spec/method_fields.h"
#include "proto/spec/online_relations.h"
#include "worker/errors.h"
#include "worker/kernels/stand_in.h"
#include "worker/memory/ledger.h"
#include "worker/trainer/epochs.h"
#include "worker/trainer/input.h"
#include "worker/trainer/microbatch_part.h"
#include "worker/trainer/row_sizes.h"

namespace tessera {
namespace {

// Some milliseconds' worth.
constexpr int64_t kRowsBetweenReports = 1 << 12;
// An epoch is a new order of the same rows: after so many rows another one hardly brings a heavier
// microbatch.
constexpr int64_t kMaxScannedRows = int64_t{1} << 24;

int64_t row_length(const v1::JobSpec& spec, const ModelConfig& config) {
  const int64_t wanted = spec::method_fields(spec.method()).max_length;
  return wanted > 0 ? wanted : std::max<int64_t>(1, config.rope.max_positions);
}

// Adds a document that nothing is learnt from, as the loader does.
void pad(MicrobatchShape& shape, int64_t multiple) {
  const int64_t tokens = std::max<int64_t>(1, shape.cu_seqlens.back());
  const int64_t padded = multiple > 0 ? at::round_up(tokens, multiple) : tokens;
  if (padded > shape.cu_seqlens.back()) shape.cu_seqlens.push_back(padded);
}

int64_t documents_per_row(const v1::Method& method) {
  return method.has_dpo() || method.has_reward() || method.has_online_dpo() ? 2 : 1;
}

MicrobatchShape full_documents(int64_t count, int64_t length, int64_t pad_to_multiple_of) {
  MicrobatchShape shape;
  for (int64_t i = 0; i < count * length; ++i) {
    if ((i + 1) % length != 0) shape.label_rows.push_back(i);
  }
  shape.num_tokens = count * length;
  shape.num_labels = count * (length - 1);
  shape.num_sequences = count;
  for (int64_t i = 0; i <= count; ++i) shape.cu_seqlens.push_back(i * length);
  pad(shape, pad_to_multiple_of);
  return shape;
}

MicrobatchShape full_rows(const v1::Method& method, int64_t rows, int64_t length,
                          const LoaderOptions& options) {
  MicrobatchShape shape =
      full_documents(rows * documents_per_row(method), length, options.pad_to_multiple_of);
  shape.rows_of_rank.assign(static_cast<size_t>(options.world_size), rows);
  shape.has_completion_tokens = documents_per_row(method) == 2;
  shape.has_values = method.has_kto() || method.has_reward() || method.has_online_dpo();
  shape.has_reference_logps = spec::method_fields(method).precompute_ref_log_probs;
  if (method.kto().loss_type() == "kto") shape.mismatched = {shape};
  return shape;
}

struct Found {
  int64_t num_tokens = -1;  // nothing; with padding, as num_mismatched
  int64_t num_labels = 0, longest = 0, num_mismatched = 0;
  int64_t keys_of_others = 0;  // where ranks share a stream
  int64_t epoch = 0, row = 0, place = 0;
  int rank = 0;
};

// What may weigh most, what comes next where that is equal.
constexpr std::array kWeights = {
    +[](const Found& f) { return std::array{f.num_tokens, f.num_labels, f.longest, f.place}; },
    +[](const Found& f) { return std::array{f.num_labels, f.num_tokens, f.longest, f.place}; },
    +[](const Found& f) { return std::array{f.longest, f.num_tokens, f.num_labels, f.place}; },
    +[](const Found& f) {
      return std::array{f.num_mismatched, f.num_tokens, f.num_labels, f.place};
    },
    +[](const Found& f) {
      return std::array{f.num_tokens + f.num_labels, f.num_labels, f.longest, f.place};
    },
    +[](const Found& f) {
      return std::array{f.keys_of_others, f.num_tokens, f.num_labels, f.place};
    },
};

// Sizes that are gone on with, beside the heaviest.
constexpr size_t kMostNext = 16;

// Of one place in a step.
struct Heaviest {
  std::array<Found, kWeights.size()> by_weight;
  std::vector<Found> next;  // of different sizes, by the first weight; with the heaviest

  void weigh(const Found& found) {
    for (size_t i = 0; i < kWeights.size(); ++i) {
      if (kWeights[i](by_weight[i]) < kWeights[i](found)) by_weight[i] = found;
    }
    const auto size_of = [](const Found& f) {
      return std::array{f.num_tokens, f.num_labels, f.longest, f.num_mismatched};
    };
    const auto at = std::ranges::lower_bound(next, size_of(found), std::greater(), size_of);
    if (at != next.end() && size_of(*at) == size_of(found)) return;
    if (at == next.end() && next.size() == kMostNext) return;
    next.insert(at, found);
    if (next.size() > kMostNext) next.pop_back();
  }

  // Number `i` of next, or the last: nothing where there is none.
  Found numbered(size_t i) const {
    return next.empty() ? Found{} : next[std::min(i, next.size() - 1)];
  }
};

// Finds the heaviest microbatches among those that a loader deals.
class Search {
 public:
  // Of the ranks `among`; empty: of all.
  Search(const RowSizes& rows, const LoaderOptions& options, const v1::Method& method,
         int context_size, std::vector<int> among, const Reports& reports)
      : rows_(rows),
        options_(options),
        has_reference_logps_(spec::method_fields(method).precompute_ref_log_probs),
        context_size_(context_size),
        among_(std::move(among)),
        reports_(reports),
        loader_(rows, options) {
    if (!among_.empty()) return;
    among_.resize(static_cast<size_t>(options.world_size));
    std::iota(among_.begin(), among_.end(), 0);
  }

  const Loader& loader() const { return loader_; }

  // Microbatches of the epoch, those of a step `per_step`; at most `most` of them. They are told
  // apart by their place in a step where `steps` is true. Returns the rows that were gone through.
  int64_t scan(int64_t epoch, int64_t per_step, int64_t most, bool steps) {
    const int64_t count = std::min(most, loader_.microbatches_per_epoch());
    const int64_t between_reports = std::max<int64_t>(1, kRowsBetweenReports / rows_of_all());
    for (int64_t i = 0; i < count; ++i) {
      if (i % between_reports == 0) reports_.alive();
      const int64_t row = i * loader_.microbatch_rows(), place = i % per_step;
      const bool ends_step = place + 1 == per_step || i + 1 == count;
      Heaviest& heaviest = !steps || place == 0 ? first_ : ends_step ? last_ : between_;
      for (const int rank : among_) heaviest.weigh(size_of(epoch, row, rank, place));
    }
    return count * rows_of_all();
  }

  HeaviestMicrobatches found() const {
    HeaviestMicrobatches out;
    out.rank = std::ranges::max({first_.by_weight[0], last_.by_weight[0], between_.by_weight[0]},
                                {}, &Found::num_tokens)
                   .rank;
    for (size_t i = 0; i < kWeights.size(); ++i) {
      HeavyStep step{shape_of(first_.by_weight[i]), shape_of(between_.by_weight[i]),
                     shape_of(last_.by_weight[i])};
      if (std::ranges::find(out.steps, step) == out.steps.end())
        out.steps.push_back(std::move(step));
    }
    const size_t count = std::max({first_.next.size(), between_.next.size(), last_.next.size()});
    for (size_t i = 1; i < count; ++i) {
      out.next.push_back({shape_of(first_.numbered(i)), shape_of(between_.numbered(i)),
                          shape_of(last_.numbered(i))});
    }
    return out;
  }

 private:
  // Of so many tokens, what a batch has of them: padding weighs as much.
  int64_t padded(int64_t num_tokens) const {
    const int64_t multiple = std::max<int64_t>(1, options_.pad_to_multiple_of);
    const int64_t chunks = context_size_ > 1 ? 2 * context_size_ : 1;
    return at::round_up(at::round_up(num_tokens, multiple), chunks);
  }

  // Of a microbatch.
  int64_t rows_of_all() const { return std::max<int64_t>(1, loader_.microbatch_rows()); }

  Found size_of(int64_t epoch, int64_t row, int rank, int64_t place) const {
    Found found{.num_tokens = 0, .epoch = epoch, .row = row, .place = place, .rank = rank};
    std::vector<int64_t> cu_seqlens{0};
    loader_.each_row(epoch, row, rank, [&](int64_t index) {
      if (context_size_ > 1) {
        for (const int32_t length : rows_.lengths(index))
          cu_seqlens.push_back(cu_seqlens.back() + length);
      }
      const RowSize& size = rows_.size_of(index);
      found.num_tokens += size.num_tokens;
      found.num_labels += size.num_labels;
      found.longest = std::max<int64_t>(found.longest, size.longest);
      found.num_mismatched += size.num_mismatched;
    });
    found.num_tokens = padded(found.num_tokens);
    found.num_mismatched = padded(found.num_mismatched);
    if (context_size_ > 1) {
      cu_seqlens.push_back(found.num_tokens);
      found.keys_of_others = most_keys_of_others(cu_seqlens, context_size_);
    }
    return found;
  }

  MicrobatchShape shape_of(const Found& found) const {
    if (found.num_tokens < 0) return {};
    MicrobatchShape shape = rows_of(rows_, found);
    if (const Dataset* mismatched = rows_.mismatched())
      shape.mismatched = {rows_of(*mismatched, found)};
    return shape;
  }

  MicrobatchShape rows_of(const Dataset& dataset, const Found& found) const {
    MicrobatchShape shape{.cu_seqlens = {0}, .place = found.place};
    loader_.each_row(found.epoch, found.row, found.rank, [&](int64_t index) {
      shape.num_tokens += dataset.num_tokens(index);
      shape.num_labels += dataset.num_labels(index);
      for (const int32_t length : dataset.lengths(index))
        shape.cu_seqlens.push_back(shape.cu_seqlens.back() + length);
    });
    shape.num_sequences = std::ssize(shape.cu_seqlens) - 1;
    shape.rows_of_rank = loader_.row_counts(found.row);
    shape.has_completion_tokens = dataset.documents_per_row() == 2;
    shape.has_values = dataset.has_values();
    shape.has_reference_logps = has_reference_logps_;
    pad(shape, options_.pad_to_multiple_of);
    if (context_size_ > 1) shape.label_rows = label_rows(dataset, found);
    return shape;
  }

  // Only the documents themselves say which of their tokens have a label.
  std::vector<int64_t> label_rows(const Dataset& dataset, const Found& found) const {
    LoaderOptions options = options_;
    options.rank = found.rank;
    options.reference = options.mismatched_reference = nullptr;
    const at::Tensor rows =
        Loader(dataset, options).microbatch(found.epoch, found.row).label_rows_L;
    const auto* begin = rows.const_data_ptr<int64_t>();
    return {begin, begin + rows.numel()};
  }

  const RowSizes& rows_;
  const LoaderOptions options_;
  const bool has_reference_logps_;
  const int context_size_;
  std::vector<int> among_;
  const Reports& reports_;
  const Loader loader_;
  Heaviest first_, between_, last_;
};

int64_t batch_rows_of_rank(const LoaderOptions& options) {
  if (!options.split_batches) return options.batch_rows;
  return at::ceil_div<int64_t>(options.batch_rows, options.world_size);
}

HeaviestMicrobatches of_full_rows(const v1::JobSpec& spec, const LoaderOptions& options,
                                  int64_t length, int64_t accumulation) {
  HeavyStep step;
  step.first = full_rows(spec.method(), batch_rows_of_rank(options), length, options);
  const auto at = [&](int64_t place) {
    MicrobatchShape shape = step.first;
    shape.place = place;
    return shape;
  };
  if (accumulation > 1) step.last = at(accumulation - 1);
  if (accumulation > 2) step.between = at(accumulation - 2);
  return {.steps = {step}, .microbatches_per_step = accumulation, .assumes_full_rows = true};
}

int num_data_ranks(const v1::JobSpec& spec) {
  const v1::Parallelism& mesh = spec.parallelism();
  return mesh.dp_replicate_size() * mesh.dp_shard_size();
}

std::string key_of_rows(const v1::JobSpec& spec, bool held_out) {
  v1::JobSpec key;
  *key.mutable_data() = spec.data();
  *key.mutable_method() = spec.method();
  *key.mutable_model() = spec.model();
  *key.mutable_reward_funcs() = spec.reward_funcs();
  key.mutable_training()->set_seed(spec.training().seed());
  const bool has_rollouts = !spec.data().rollouts().empty() || spec::makes_completions(spec);
  if (spec.method().has_kto() || has_rollouts) {
    key.mutable_training()->set_per_device_train_batch_size(
        spec.training().per_device_train_batch_size());
  }
  // What is made at once.
  if (has_rollouts) {
    *key.mutable_parallelism() = spec.parallelism();
    *key.mutable_training()->mutable_accelerator_config() = spec.training().accelerator_config();
    key.mutable_training()->set_gradient_accumulation_steps(
        spec.training().gradient_accumulation_steps());
    key.mutable_training()->set_per_device_eval_batch_size(
        spec.training().per_device_eval_batch_size());
  }
  return std::to_string(held_out) + key.SerializeAsString();
}

// Also what deals rows to microbatches, in all of the run.
std::string key_of_microbatches(const v1::JobSpec& spec, bool held_out,
                                const std::vector<int>& data_ranks) {
  std::string key = key_of_rows(spec, held_out) + spec.training().SerializeAsString() +
                    spec.parallelism().SerializeAsString();
  for (const int rank : data_ranks) key += ' ' + std::to_string(rank);
  return key;
}

}  // namespace

Reports impatient_reports(double seconds) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                        std::chrono::duration<double>(seconds));
  Reports reports;
  reports.alive = [deadline] {
    if (Clock::now() > deadline) throw UserError("data.train", "reading the data takes too long");
  };
  return reports;
}

RehearsalData::RehearsalData(Reports reports) : reports_(std::move(reports)) {}
RehearsalData::~RehearsalData() = default;

Batch MicrobatchShape::batch(at::Device device, const StreamPart& share) const {
  const OwnerScope scope(Owner::kData);
  const auto options = at::TensorOptions(host_device(device)).dtype(at::kLong);
  const int64_t size = cu_seqlens.back() / context_size;
  Batch batch;
  batch.tokens_T = at::empty({size}, options);
  batch.labels_T = at::empty({size}, options);
  batch.documents.positions_T = at::empty({size}, options);
  batch.label_rows_L = at::empty({num_labels}, options);
  batch.label_documents_L = at::empty({num_labels}, options);
  batch.documents.cu_seqlens = cu_seqlens;
  if (context_size > 1) {
    batch.documents.part = share;
    batch.documents.part->rank = context_rank;
    batch.documents.part->chunk_tokens = size / 2;
    batch.documents.part->padding = padding;
  }
  batch.num_tokens = num_tokens;
  batch.num_labels = num_labels;
  batch.num_sequences = num_sequences;
  batch.rows_of_rank = rows_of_rank;
  batch.num_rows_of_all = std::reduce(rows_of_rank.begin(), rows_of_rank.end());
  if (has_completion_tokens) batch.completion_tokens_S = at::empty({num_sequences}, options);
  if (has_values) batch.values_S = at::empty({num_sequences}, options.dtype(at::kFloat));
  if (has_reference_logps) {
    batch.reference_logps_S = at::empty({num_sequences}, options.dtype(at::kFloat));
  }
  for (const MicrobatchShape& other : mismatched) {
    batch.mismatched = std::make_shared<const Batch>(other.batch(device, share));
  }
  return batch;
}

const RowSizes* RehearsalData::rows_of(const v1::JobSpec& spec, bool held_out,
                                       const ModelConfig& config) {
  const std::string key = key_of_rows(spec, held_out);
  if (const auto known = rows_.find(key); known != rows_.end()) return known->second.get();
  auto rows = read_row_sizes(spec, held_out, config, reports_);
  return rows_.emplace(key, std::move(rows)).first->second.get();
}

const RolloutDataset* RehearsalData::rollouts(const v1::JobSpec& spec, bool held_out,
                                              const ModelConfig& config) {
  const RowSizes* rows = rows_of(spec, held_out, config);
  return rows == nullptr ? nullptr : rows->rollouts();
}

const std::vector<JudgedLengths>& RehearsalData::judged(const v1::JobSpec& spec, bool held_out,
                                                        const ModelConfig& config) {
  static const std::vector<JudgedLengths> kUnknown;
  const RowSizes* rows = rows_of(spec, held_out, config);
  return rows == nullptr ? kUnknown : rows->judged();
}

const HeaviestMicrobatches& RehearsalData::training(const v1::JobSpec& spec,
                                                    const ModelConfig& config,
                                                    const RankChoice& among) {
  return heaviest(spec, config, among, /*held_out=*/false);
}

const HeaviestMicrobatches& RehearsalData::held_out(const v1::JobSpec& spec,
                                                    const ModelConfig& config,
                                                    const RankChoice& among) {
  return heaviest(spec, config, among, /*held_out=*/true);
}

const HeaviestMicrobatches& RehearsalData::heaviest(const v1::JobSpec& spec,
                                                    const ModelConfig& config,
                                                    const RankChoice& among, bool held_out) {
  const std::string key = key_of_microbatches(spec, held_out, among.data_ranks);
  auto whole = whole_.find(key);
  if (whole == whole_.end()) {
    whole = whole_
                .emplace(key, held_out ? search_held_out(spec, config, among.data_ranks)
                                       : search_training(spec, config, among.data_ranks))
                .first;
  }
  const std::pair part(key, among.context_rank);
  if (const auto known = parts_.find(part); known != parts_.end()) return known->second;
  return parts_
      .emplace(part, parts_of(whole->second, spec.parallelism().cp_size(), among.context_rank))
      .first->second;
}

HeaviestMicrobatches RehearsalData::search_training(const v1::JobSpec& spec,
                                                    const ModelConfig& config,
                                                    const std::vector<int>& data_ranks) {
  const v1::Training& training = spec.training();
  const LoaderOptions options =
      loader_options(spec, /*held_out=*/false, config, /*rank=*/0, num_data_ranks(spec));
  const int64_t accumulation = spec::step_plan(spec).num_microbatches;
  const RowSizes* rows = rows_of(spec, /*held_out=*/false, config);
  HeaviestMicrobatches full = of_full_rows(spec, options, row_length(spec, config), accumulation);
  if (!data_ranks.empty()) full.rank = data_ranks.front();
  full.total_steps = training.max_steps();
  if (rows == nullptr) return full;
  Search search(*rows, options, spec.method(), spec.parallelism().cp_size(), data_ranks, reports_);
  const Epochs epochs(search.loader(), accumulation);
  const int64_t steps = epochs.total_steps(training, 0, epochs.normal({}));
  const int64_t per_epoch = search.loader().microbatches_per_epoch();
  if (steps == 0 || per_epoch == 0) return full;
  int64_t left = steps * accumulation;
  try {
    for (int64_t epoch = 0, scanned = 0; left > 0; ++epoch) {
      scanned += search.scan(epoch, accumulation, left, /*steps=*/true);
      left -= at::round_up(per_epoch, accumulation);
      if (!options.shuffle || scanned > kMaxScannedRows) break;
    }
  } catch (const UserError&) {
    return full;  // there is no time for them
  }
  HeaviestMicrobatches found = search.found();
  found.assumes_full_rows = rows->is_assumed();
  found.microbatches_per_step = std::min(accumulation, per_epoch);
  found.total_steps = steps;
  return found;
}

HeaviestMicrobatches RehearsalData::search_held_out(const v1::JobSpec& spec,
                                                    const ModelConfig& config,
                                                    const std::vector<int>& data_ranks) {
  const LoaderOptions options =
      loader_options(spec, /*held_out=*/true, config, /*rank=*/0, num_data_ranks(spec));
  const RowSizes* rows = rows_of(spec, /*held_out=*/true, config);
  const HeaviestMicrobatches full =
      of_full_rows(spec, options, row_length(spec, config), /*accumulation=*/1);
  if (rows == nullptr) return full;
  Search search(*rows, options, spec.method(), spec.parallelism().cp_size(), data_ranks, reports_);
  const int64_t count = search.loader().microbatches_per_epoch();
  if (count == 0) return full;
  try {
    search.scan(/*epoch=*/0, /*per_step=*/count, /*most=*/count, /*steps=*/false);
  } catch (const UserError&) {
    return full;  // there is no time for them
  }
  HeaviestMicrobatches found = search.found();
  found.assumes_full_rows = rows->is_assumed();
  return found;
}

}  // namespace tessera
