#include "worker/trainer/microbatch_part.h"

#include <algorithm>
#include <iterator>

namespace tessera {

MicrobatchShape part_of(const MicrobatchShape& whole, int rank, int size) {
  StreamPart part{.rank = rank, .size = size};
  const int64_t num_tokens = whole.cu_seqlens.back();
  part.chunk_tokens = (num_tokens + part.num_chunks() - 1) / part.num_chunks();
  MicrobatchShape out = whole;
  out.context_rank = rank;
  out.context_size = size;
  out.padding = part.num_stream_tokens() - num_tokens;
  if (out.padding > 0) out.cu_seqlens.push_back(part.num_stream_tokens());
  out.num_tokens = out.num_labels = 0;
  for (const int which : {0, 1}) {
    const int64_t begin = part.begin(which), end = begin + part.chunk_tokens;
    out.num_tokens += std::clamp<int64_t>(whole.num_tokens - begin, 0, part.chunk_tokens);
    out.num_labels += std::ranges::lower_bound(whole.label_rows, end) -
                      std::ranges::lower_bound(whole.label_rows, begin);
  }
  out.label_rows.clear();
  for (MicrobatchShape& other : out.mismatched) other = part_of(other, rank, size);
  return out;
}

int64_t most_keys_of_others(const std::vector<int64_t>& cu_seqlens, int size) {
  StreamPart part{.size = size};
  part.chunk_tokens = (cu_seqlens.back() + part.num_chunks() - 1) / part.num_chunks();
  std::vector<int64_t> keys(static_cast<size_t>(size));
  for (int64_t chunk = 0; chunk + 1 < part.num_chunks(); ++chunk) {
    // Of a chunk, later ones see what it has of the document that goes on in them.
    const int64_t begin = chunk * part.chunk_tokens, end = begin + part.chunk_tokens;
    const auto next = std::ranges::lower_bound(cu_seqlens, end);
    if (next == cu_seqlens.end() || next == cu_seqlens.begin()) break;
    const int64_t count = end - std::max(begin, *std::prev(next));
    const auto has = [&](int rank, int which) { return part.chunk(rank, which) == chunk; };
    const auto sees = [&](int rank, int which) {
      const int64_t first = part.chunk(rank, which) * part.chunk_tokens;
      return first >= end && first < *next;
    };
    for (int rank = 0; rank < size; ++rank) {
      if (has(rank, 0) || has(rank, 1)) continue;
      if (sees(rank, 0) || sees(rank, 1)) keys[rank] += count;
    }
  }
  return std::ranges::max(keys);
}

namespace {

// Of a step the parts of `chosen`, or of the rank with the most labels.
HeavyStep heaviest_parts(const HeavyStep& step, int size, std::optional<int> chosen) {
  // Steps may have no such microbatch: it is of no tokens.
  const auto part = [size](const MicrobatchShape& of, int rank) {
    return of.cu_seqlens.empty() ? of : part_of(of, rank, size);
  };
  const auto labels = [](const HeavyStep& of) {
    return std::max({of.first.num_labels, of.between.num_labels, of.last.num_labels});
  };
  const auto parts = [&](int rank) {
    return HeavyStep{part(step.first, rank), part(step.between, rank), part(step.last, rank)};
  };
  HeavyStep heaviest = size == 1 ? step : parts(chosen.value_or(0));
  for (int rank = 1; rank < size && !chosen; ++rank) {
    HeavyStep own = parts(rank);
    if (labels(own) > labels(heaviest)) heaviest = std::move(own);
  }
  for (MicrobatchShape* shape : {&heaviest.first, &heaviest.between, &heaviest.last})
    shape->label_rows.clear();
  return heaviest;
}

}  // namespace

HeaviestMicrobatches parts_of(HeaviestMicrobatches whole, int size, std::optional<int> rank) {
  for (std::vector<HeavyStep>* steps : {&whole.steps, &whole.next}) {
    for (HeavyStep& step : *steps) step = heaviest_parts(step, size, rank);
  }
  return whole;
}

}  // namespace tessera
