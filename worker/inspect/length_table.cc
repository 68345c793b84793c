#include "worker/inspect/length_table.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "worker/data/packing.h"

namespace tessera {
namespace {

constexpr int kMaxThreads = 16;

struct NamedStrategy {
  const char* name;
  PackingStrategy strategy;
};
constexpr NamedStrategy kStrategies[] = {{"bfd", PackingStrategy::kBfd},
                                         {"bfd_split", PackingStrategy::kBfdSplit},
                                         {"wrapped", PackingStrategy::kWrapped}};

// Whether the document's row would be left out.
bool is_lost(const DocumentLength& document, int32_t limit, LeftOut left_out) {
  switch (left_out) {
    case LeftOut::kNone:
      return false;
    case LeftOut::kUnlabelled:
      return document.first_label >= std::min(document.num_tokens, limit);
    case LeftOut::kLongPrompt:
      return document.first_label >= limit;
    case LeftOut::kLonger:
      return document.num_tokens > limit;
    case LeftOut::kPromptCutOff:
      return document.first_label <= document.num_tokens - limit;
  }
  return false;
}

void count_truncated(std::span<const DocumentLength> documents, LeftOut left_out,
                     v1::LengthChoice& choice) {
  const int32_t limit = choice.max_length();
  int64_t num_cut = 0, num_lost = 0, num_tokens = 0;
  for (const DocumentLength& document : documents) {
    num_cut += document.num_tokens > limit;
    num_tokens += std::max(0, document.num_tokens - limit);
    num_lost += is_lost(document, limit, left_out);
  }
  choice.set_num_truncated_documents(num_cut);
  choice.set_num_truncated_tokens(num_tokens);
  choice.set_num_lost_documents(num_lost);
}

// `lengths` in the order of batches.
void count_batches(std::span<const int32_t> lengths, int32_t batch_rows, v1::LengthChoice& choice) {
  const int32_t limit = choice.max_length();
  int64_t padding = 0, largest = 0, total = 0, num_batches = 0;
  for (size_t first = 0; first < lengths.size(); first += static_cast<size_t>(batch_rows)) {
    const auto batch =
        lengths.subspan(first, std::min(static_cast<size_t>(batch_rows), lengths.size() - first));
    int64_t tokens = 0, longest = 0;
    for (const int32_t length : batch) {
      const int64_t kept = std::min(length, limit);
      tokens += kept;
      longest = std::max(longest, kept);
    }
    padding += longest * static_cast<int64_t>(batch.size()) - tokens;
    largest = std::max(largest, tokens);
    total += tokens;
    ++num_batches;
  }
  choice.set_num_padding_tokens(padding);
  choice.set_max_microbatch_tokens(largest);
  choice.set_mean_microbatch_tokens(num_batches > 0 ? total / num_batches : 0);
}

// Packs thousand by thousand, as training does, and keeps only the counts.
v1::PackedRows count_packed(std::span<const DocumentLength> documents, int32_t max_length,
                            const NamedStrategy& named) {
  v1::PackedRows packed;
  packed.set_strategy(named.name);
  Packer packer(max_length, named.strategy);
  PackingPlan plan;
  std::vector<int64_t> lengths;
  std::vector<int32_t> pieces;
  int64_t num_rows = 0, num_tokens = 0, num_split = 0;
  for (size_t first = 0; first < documents.size(); first += kPackingBatch) {
    const auto batch =
        documents.subspan(first, std::min<size_t>(kPackingBatch, documents.size() - first));
    lengths.clear();
    for (const DocumentLength& document : batch) lengths.push_back(document.num_tokens);
    plan.segments.clear();
    plan.row_offsets.assign(1, 0);
    packer.pack(lengths, 0, plan);
    pieces.assign(batch.size(), 0);
    for (const Segment& segment : plan.segments) {
      num_tokens += segment.length;
      num_split += ++pieces[static_cast<size_t>(segment.document)] == 2;
    }
    num_rows += plan.num_rows();
  }
  packed.set_num_rows(num_rows);
  packed.set_num_tokens(num_tokens);
  packed.set_num_split_documents(num_split);
  return packed;
}

// Throws what the first task that failed threw; no further ones are begun.
void run_all(const std::vector<std::function<void()>>& tasks, int num_threads) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = std::clamp(num_threads > 0 ? num_threads : cores, 1, kMaxThreads);
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;  // guarded by mutex
  const auto work = [&] {
    try {
      for (size_t i = next++; i < tasks.size(); i = next++) tasks[i]();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = tasks.size();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

std::vector<v1::LengthChoice> make_length_table(std::span<const DocumentLength> documents,
                                                const LengthTableOptions& options) {
  std::vector<int32_t> shuffled;
  shuffled.reserve(documents.size());
  for (const DocumentLength& document : documents) {
    if (document.num_tokens > 0) shuffled.push_back(document.num_tokens);
  }
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937_64(options.seed));

  std::vector<v1::LengthChoice> choices(options.max_lengths.size());
  std::vector<std::function<void()>> tasks;
  for (size_t i = 0; i < choices.size(); ++i) {
    v1::LengthChoice& choice = choices[i];
    choice.set_max_length(options.max_lengths[i]);
    for (const NamedStrategy& named : kStrategies) {
      if (!options.packs) break;
      v1::PackedRows& packed = *choice.add_packed();
      tasks.push_back([&, max_length = options.max_lengths[i]] {
        packed = count_packed(documents, max_length, named);
      });
    }
    tasks.push_back([&] {
      count_truncated(documents, options.truncation.left_out, choice);
      count_batches(shuffled, options.batch_rows, choice);
    });
  }
  run_all(tasks, options.num_threads);
  return choices;
}

}  // namespace tessera
