#include "worker/kernels/attention_span.h"

#include <algorithm>

namespace tessera {
namespace {

// The sum of min(first + i, most) over i in [0, count), where first is at least 0.
double limited_sum(int64_t first, int64_t count, int64_t most) {
  const auto below = static_cast<double>(std::clamp<int64_t>(most - first, 0, count));
  return below * static_cast<double>(first) + below * (below - 1) / 2 +
         (static_cast<double>(count) - below) * static_cast<double>(most);
}

}  // namespace

std::vector<AttentionSpan> attention_spans(const std::vector<int64_t>& cu_seqlens, int64_t window,
                                           const TokenRange& queries, const TokenRange& keys) {
  std::vector<AttentionSpan> spans;
  const int64_t from = std::max(queries.begin, keys.begin);
  // From the document on that holds the first token that may see one of the keys.
  auto document = std::upper_bound(cu_seqlens.begin(), cu_seqlens.end(), from);
  if (document != cu_seqlens.begin()) --document;
  for (; document + 1 < cu_seqlens.end() && *document < queries.end(); ++document) {
    const int64_t begin = document[0], end = document[1];
    int64_t first_key = std::max(begin, keys.begin);
    const int64_t first = std::max({begin, queries.begin, keys.begin});
    if (window > 0) first_key = std::max(first_key, first + 1 - window);
    int64_t last = std::min(end, queries.end());
    const int64_t last_key = std::min({last, keys.end()});
    if (window > 0) last = std::min(last, last_key + window - 1);
    if (first >= last || first_key >= last_key) continue;
    spans.push_back({queries.row + first - queries.begin, last - first,
                     keys.row + first_key - keys.begin, last_key - first_key, first - first_key});
  }
  return spans;
}

std::vector<AttentionSpan> attention_spans(const std::vector<int64_t>& cu_seqlens) {
  std::vector<AttentionSpan> spans;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t begin = cu_seqlens[s], length = cu_seqlens[s + 1] - begin;
    if (length > 0) spans.push_back({begin, length, begin, length, /*offset=*/0});
  }
  return spans;
}

double num_seen_pairs(const std::vector<AttentionSpan>& spans, int64_t window) {
  double pairs = 0;
  for (const AttentionSpan& span : spans) {
    pairs += limited_sum(span.offset + 1, span.num_queries, span.num_keys);
    // Those hidden by the window: max(0, offset + i + 1 - window) of query i.
    const int64_t seeing_all = std::clamp<int64_t>(window - span.offset, 0, span.num_queries);
    const int64_t others = window == 0 ? 0 : span.num_queries - seeing_all;
    if (others > 0) {
      pairs -=
          limited_sum(span.first_seen(seeing_all, window), others, span.num_queries + span.offset);
    }
  }
  return pairs;
}

}  // namespace tessera
