#include "worker/inspect/profile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <set>

#include "worker/data/job_data.h"
#include "worker/data/json.h"
#include "worker/errors.h"
#include "worker/inspect/length_advice.h"
#include "worker/inspect/length_table.h"

namespace tessera {
namespace {

constexpr double kShares[] = {0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1};
constexpr int kWantedBins = 24;
constexpr int kMaxResolution = 5;
constexpr size_t kMaxSuggested = 8;
constexpr int kMaxGivenLengths = 16;
constexpr int64_t kLeastSuggested = 64;
constexpr int64_t kMostSuggested = 1 << 20;
// Where fewer tokens than this are cut off, documents are whole; of longer rows, which may be
// fuller, a few are suggested.
constexpr double kNextToNone = 1e-4;
constexpr int kLongerRows = 2;

// Bins of an octave, 2^resolution, are of one width: their edges are round numbers.
int64_t bin_of(int64_t length, int resolution) {
  const int64_t octave = std::bit_width(static_cast<uint64_t>(length)) - 1;
  const int64_t shift = std::max<int64_t>(0, octave - resolution);
  return (shift << resolution) + (length >> shift);
}

int64_t bin_begin(int64_t bin, int resolution) {
  const int64_t shift = std::max<int64_t>(0, (bin >> resolution) - 1);
  return (bin - (shift << resolution)) << shift;
}

// As fine as kWantedBins allow.
int resolution_for(int64_t shortest, int64_t longest) {
  int resolution = kMaxResolution;
  const auto num_bins = [&] {
    return bin_of(longest, resolution) - bin_of(shortest, resolution) + 1;
  };
  while (resolution > 1 && num_bins() > kWantedBins) --resolution;
  return resolution;
}

void add_bins(std::span<const int32_t> sorted, v1::DataProfile& profile) {
  if (sorted.empty()) return;
  const int resolution = resolution_for(sorted.front(), sorted.back());
  const int64_t first = bin_of(sorted.front(), resolution);
  for (int64_t bin = first; bin <= bin_of(sorted.back(), resolution); ++bin) {
    v1::LengthBin& added = *profile.add_bins();
    added.set_begin(bin_begin(bin, resolution));
    added.set_end(bin_begin(bin + 1, resolution));
  }
  for (const int32_t length : sorted) {
    v1::LengthBin& bin =
        *profile.mutable_bins(static_cast<int>(bin_of(length, resolution) - first));
    bin.set_num_documents(bin.num_documents() + 1);
    bin.set_num_tokens(bin.num_tokens() + length);
  }
}

void add_quantiles(std::span<const int32_t> sorted, v1::DataProfile& profile) {
  if (sorted.empty()) return;
  for (const double share : kShares) {
    const double position = share * static_cast<double>(sorted.size());
    const auto rank = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(position)));
    v1::LengthQuantile& quantile = *profile.add_quantiles();
    quantile.set_share(share);
    quantile.set_num_tokens(sorted[static_cast<size_t>(rank) - 1]);
  }
}

std::vector<int32_t> suggested(std::span<const int32_t> sorted, int64_t num_tokens,
                               int64_t context) {
  std::vector<int32_t> lengths;
  if (sorted.empty()) return lengths;
  int64_t beyond = num_tokens;
  const auto median = static_cast<uint64_t>(sorted[sorted.size() / 2]);
  const auto most = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(
      std::clamp(context > 0 ? context : kMostSuggested, kLeastSuggested, kMostSuggested))));
  auto length = std::clamp(static_cast<int64_t>(std::bit_ceil(median)), kLeastSuggested, most);
  for (int num_longer = 0; length <= most && num_longer < kLongerRows; length *= 2) {
    num_longer += static_cast<double>(beyond) <= kNextToNone * static_cast<double>(num_tokens);
    lengths.push_back(static_cast<int32_t>(length));
    beyond = 0;
    const auto longer = std::upper_bound(sorted.begin(), sorted.end(), length);
    for (auto it = longer; it != sorted.end(); ++it) beyond += *it - length;
  }
  if (lengths.size() > kMaxSuggested) lengths.erase(lengths.begin(), lengths.end() - kMaxSuggested);
  return lengths;
}

// 0: the directory does not say. Read by hand, for the reader of config.json is the engine's and
// links LibTorch.
int64_t context_of(const std::filesystem::path& model) {
  if (model.empty() || !std::filesystem::exists(model / "config.json")) return 0;
  const JsonFile config(model / "config.json", "model.path");
  const auto context = config.root().find("max_position_embeddings");
  return context ? context->integer() : 0;
}

DatasetOptions options_of(const v1::InspectRequest& request,
                          const std::function<void(const std::string&)>& note) {
  DatasetOptions options = dataset_options(request.spec(), request.held_out(), /*vocab_size=*/0);
  options.max_documents = request.max_documents();
  options.reports.note = note;
  return options;
}

}  // namespace

v1::DataProfile profile_lengths(std::span<const DocumentLength> documents,
                                const LengthProfileOptions& options) {
  std::vector<int32_t> sorted;
  sorted.reserve(documents.size());
  for (const DocumentLength& document : documents) sorted.push_back(document.num_tokens);
  std::sort(sorted.begin(), sorted.end());
  v1::DataProfile profile;
  profile.set_num_documents(static_cast<int64_t>(sorted.size()));
  profile.set_num_tokens(std::accumulate(sorted.begin(), sorted.end(), int64_t{0}));
  profile.set_batch_rows(options.batch_rows);
  profile.set_context(options.context);
  if (sorted.empty()) return profile;
  profile.set_mean_tokens(static_cast<double>(profile.num_tokens()) /
                          static_cast<double>(sorted.size()));
  add_quantiles(sorted, profile);
  add_bins(sorted, profile);

  std::set<int32_t> lengths(options.max_lengths.begin(), options.max_lengths.end());
  if (options.job_max_length > 0) lengths.insert(options.job_max_length);
  for (const int32_t length : suggested(sorted, profile.num_tokens(), options.context))
    lengths.insert(length);
  for (v1::LengthChoice& choice :
       make_length_table(documents, {.max_lengths = {lengths.begin(), lengths.end()},
                                     .batch_rows = options.batch_rows,
                                     .seed = options.seed,
                                     .num_threads = options.num_threads,
                                     .truncation = options.truncation,
                                     .packs = options.packs})) {
    choice.set_is_of_job(choice.max_length() == options.job_max_length);
    *profile.add_choices() = std::move(choice);
  }
  add_length_advice(profile, options.truncation.left_out);
  return profile;
}

void profile(const v1::InspectRequest& request,
             const std::function<void(const v1::InspectReply&)>& reply) {
  const v1::JobSpec& spec = request.spec();
  const auto& given = request.profile().max_lengths();
  if (given.size() > kMaxGivenLengths || std::any_of(given.begin(), given.end(), [](int32_t value) {
        return value < 1 || value > kMostSuggested;
      })) {
    throw UserError("max_lengths", "max_lengths must be at most " +
                                       std::to_string(kMaxGivenLengths) + " values from 1 to " +
                                       std::to_string(kMostSuggested));
  }
  std::mutex mutex;
  const DatasetOptions options = options_of(request, [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    v1::InspectReply message;
    message.set_note(line);
    reply(message);
  });
  const std::vector<DocumentLength> documents = load_lengths(options);
  const bool is_pair = spec.method().has_dpo() || spec.method().has_reward();
  const int32_t rows = std::max(1, spec.training().per_device_train_batch_size());
  v1::InspectReply message;
  *message.mutable_profile() =
      profile_lengths(documents, {.max_lengths = {given.begin(), given.end()},
                                  .job_max_length = static_cast<int32_t>(options.max_length),
                                  .batch_rows = is_pair ? 2 * rows : rows,
                                  .context = context_of(spec.model().path()),
                                  .seed = options.mixture_seed,
                                  .num_threads = options.num_threads,
                                  .truncation = truncation_of(options),
                                  .packs = options.examples.kind == RecordKind::kSft});
  message.mutable_profile()->set_max_documents(request.max_documents());
  reply(message);
}

}  // namespace tessera
