// Which stretches of which documents make each row, in a few bytes a document.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/data/packing.h"
#include "worker/data/token_store.h"
#include "worker/data/truncation.h"

namespace tessera {

inline constexpr const char* kMixedRecords =
    "some sources of the mixture hold pairs, others single completions; they must be alike";

// Documents of several stores, counted through: those of the first store come first.
class Corpus {
 public:
  // Throws std::length_error: too many documents; std::invalid_argument: the stores' records have
  // different numbers of documents.
  explicit Corpus(std::vector<std::unique_ptr<TokenStore>> stores);

  int64_t size() const { return begins_.back(); }
  int64_t documents_per_record() const { return documents_per_record_; }
  const TokenStore& store(size_t index) const { return *stores_[index]; }
  bool has_masks() const { return has_masks_; }
  bool has_values() const { return has_values_; }
  int64_t length(int64_t document) const;
  // Tokens before the first one that counts.
  int64_t prompt_length(int64_t document) const;

  // Where a document is.
  struct Place {
    const TokenStore& store;
    int64_t document;
  };
  Place find(int64_t document) const;

 private:
  std::vector<std::unique_ptr<TokenStore>> stores_;
  std::vector<int64_t> begins_;  // of each store, and the end of the last
  int64_t documents_per_record_ = 1;
  bool has_masks_ = false;
  bool has_values_ = false;
};

struct RowPlanOptions {
  int64_t max_length = 0;  // of a document, or of a row when packing; 0: no limit
  PackingStrategy packing = PackingStrategy::kNone;
  // The rest is for plans without packing.
  Truncation truncation;
  // A row is a record. Else every document has a row of its own: of each kPackingBatch records
  // first the first documents, then the second ones, as TRL's unpair_preference_dataset has them.
  bool row_is_record = true;
};

// A stretch of a document.
struct Stretch {
  int64_t begin = 0;
  int64_t length = 0;
};

// Immutable, thread safe. With packing a row is at most max_length tokens, so a segment is as long
// as its document and the room left in its row allow: only where it begins is kept.
class RowPlan {
 public:
  // Plans rows of the records that `order` names, one after the other, a record possibly more than
  // once; an empty order is the corpus's own. Without packing rows without tokens are left out too.
  // Packing needs records of one document. The corpus outlives this.
  RowPlan(const Corpus& corpus, std::vector<uint32_t> order, const RowPlanOptions& options);

  int64_t size() const { return num_rows_; }
  int64_t num_left_out() const { return num_left_out_; }
  // Documents of every row; 0 with packing.
  int64_t documents_per_row() const { return documents_per_row_; }
  // Without packing: the first document of a row, and what stays of a document.
  int64_t first_document(int64_t row) const { return unit(row) * documents_per_row_; }
  Stretch kept(int64_t document) const;
  int64_t max_length() const { return max_row_; }

  // Calls visit(document, begin, length) for each segment of a row.
  template <class Visit>
  void for_each(int64_t row, Visit&& visit) const {
    if (documents_per_row_ > 0) {
      const int64_t first = first_document(row);
      for (int64_t document = first; document < first + documents_per_row_; ++document) {
        const Stretch stretch = kept(document);
        visit(document, stretch.begin, stretch.length);
      }
      return;
    }
    int64_t room = max_row_;
    const auto end = static_cast<int64_t>(row_begins_[row + 1]);
    for (auto i = static_cast<int64_t>(row_begins_[row]); i < end; ++i) {
      const int64_t document = documents_[i];
      const int64_t begin = begins_.empty() ? 0 : begins_[i];
      const int64_t length = std::min(room, corpus_.length(document) - begin);
      visit(document, begin, length);
      room -= length;
    }
  }

 private:
  void plan_unpacked(const std::vector<uint32_t>& order);
  bool is_left_out(int64_t unit) const;
  void plan_packed(const std::vector<uint32_t>& order);
  void append(const PackingPlan& batch, const std::vector<uint32_t>& order);
  int64_t unit(int64_t row) const { return documents_.empty() ? row : documents_[row]; }

  const Corpus& corpus_;
  const RowPlanOptions options_;
  const int64_t max_row_;
  int64_t documents_per_row_;
  int64_t num_rows_ = 0;
  int64_t num_left_out_ = 0;
  // With packing: the document of each segment. Else of each row: its record, or its document where
  // it is a row of its own; empty: row i is number i.
  std::vector<uint32_t> documents_;
  std::vector<uint32_t> begins_;      // with packing, of each segment; empty: all 0
  std::vector<uint64_t> row_begins_;  // with packing, first segment of each row
};

}  // namespace tessera
