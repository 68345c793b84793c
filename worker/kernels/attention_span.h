// Attention cut by what is at hand: some tokens' queries, and some tokens' keys and values.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// Tokens [begin, begin + count) of the stream, in rows [row, row + count) of a tensor.
struct TokenRange {
  int64_t begin, count;
  int64_t row = 0;

  int64_t end() const { return begin + count; }
};

// Queries of one document and keys of the same. Query i sees keys [first_seen(i), last_seen(i)),
// which are never none.
struct AttentionSpan {
  int64_t query_row, num_queries;  // rows of q
  int64_t key_row, num_keys;       // rows of k and v
  // How many tokens the first query stands behind the first key. At least 0; num_keys or more where
  // the keys are all before it.
  int64_t offset;

  int64_t first_seen(int64_t i, int64_t window) const {
    return window == 0 || offset + i < window ? 0 : offset + i + 1 - window;
  }
  int64_t last_seen(int64_t i) const { return offset + i < num_keys ? offset + i + 1 : num_keys; }
  // The last query is the last key's token: nothing but causality and the window hides anything.
  bool ends_together() const { return offset + num_queries == num_keys; }
};

// The spans of all documents, in their order, without the queries that see none of the keys and the
// keys that none of the queries sees. A token sees itself and those before it in its document,
// `window` in all (0: no limit). cu_seqlens as in worker/batch.h.
std::vector<AttentionSpan> attention_spans(const std::vector<int64_t>& cu_seqlens, int64_t window,
                                           const TokenRange& queries, const TokenRange& keys);
// Of the whole stream on itself.
std::vector<AttentionSpan> attention_spans(const std::vector<int64_t>& cu_seqlens);

// Pairs of a query and a key that it sees.
double num_seen_pairs(const std::vector<AttentionSpan>& spans, int64_t window);

}  // namespace tessera
