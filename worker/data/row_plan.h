// Which stretches of which documents make each row, in a few bytes a document.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/data/packing.h"
#include "worker/data/token_store.h"

namespace tessera {

// Documents of several stores, counted through: those of the first store come first.
class Corpus {
 public:
  explicit Corpus(std::vector<std::unique_ptr<TokenStore>> stores);

  int64_t size() const { return begins_.back(); }
  const TokenStore& store(size_t index) const { return *stores_[index]; }
  bool has_masks() const { return has_masks_; }
  int64_t length(int64_t document) const;

  // Where a document is.
  struct Place {
    const TokenStore& store;
    int64_t document;
  };
  Place find(int64_t document) const;

 private:
  std::vector<std::unique_ptr<TokenStore>> stores_;
  std::vector<int64_t> begins_;  // of each store, and the end of the last
  bool has_masks_ = false;
};

struct RowPlanOptions {
  int64_t max_length = 0;  // 0: no limit
  PackingStrategy packing = PackingStrategy::kNone;
};

// Immutable, thread safe. A row is at most max_length tokens, so a segment is as long as its
// document and the room left in its row allow: only where it begins is kept.
class RowPlan {
 public:
  // Plans rows of the documents that `order` names, one after the other, a document possibly more
  // than once; an empty order is the corpus's own. Without packing a document goes to a row of its
  // own, and those of which no token counts are left out where there is a max_length, as TRL does
  // after truncating. The corpus outlives this.
  RowPlan(const Corpus& corpus, std::vector<uint32_t> order, const RowPlanOptions& options);

  int64_t size() const { return num_rows_; }
  // Calls visit(document, begin, length) for each segment of a row.
  template <class Visit>
  void for_each(int64_t row, Visit&& visit) const {
    int64_t room = max_row_;
    const int64_t end = row_begin(row + 1);
    for (int64_t i = row_begin(row); i < end; ++i) {
      const int64_t document = documents_.empty() ? i : documents_[i];
      const int64_t begin = begins_.empty() ? 0 : begins_[i];
      const int64_t length = std::min(room, corpus_.length(document) - begin);
      visit(document, begin, length);
      room -= length;
    }
  }

 private:
  void plan_single(std::vector<uint32_t> order, bool drops_masked);
  void plan_packed(const std::vector<uint32_t>& order, PackingStrategy packing);
  void append(const PackingPlan& batch, const std::vector<uint32_t>& order);
  int64_t row_begin(int64_t row) const {
    return row_begins_.empty() ? row : static_cast<int64_t>(row_begins_[row]);
  }

  const Corpus& corpus_;
  const int64_t max_row_;
  int64_t num_rows_ = 0;
  std::vector<uint32_t> documents_;   // of each segment; empty: segment i is document i
  std::vector<uint32_t> begins_;      // of each segment; empty: all 0
  std::vector<uint64_t> row_begins_;  // first segment of each row; empty: row i is segment i
};

}  // namespace tessera
