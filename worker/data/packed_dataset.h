// Rows out of stores of tokenised documents.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/mismatched_rows.h"
#include "worker/data/row_plan.h"

namespace tessera {

class PackedDataset final : public Dataset {
 public:
  // `order` and `options` as in RowPlan. `key`: see Dataset::key(); of all of them.
  // `rotation_rows`: see MismatchedRows; 0: nobody needs those.
  PackedDataset(std::vector<std::unique_ptr<TokenStore>> stores, std::vector<uint32_t> order,
                const RowPlanOptions& options, std::string key = "", int64_t rotation_rows = 0);

  int64_t size() const override { return plan_.size(); }
  Row row(int64_t index) const override;
  int64_t num_tokens(int64_t index) const override;
  int64_t num_labels(int64_t index) const override;
  std::vector<int32_t> lengths(int64_t index) const override;
  bool has_values() const override { return corpus_.has_values(); }
  int documents_per_row() const override { return static_cast<int>(plan_.documents_per_row()); }
  const Dataset* mismatched() const override { return mismatched_.get(); }
  std::string key() const override { return key_; }
  // The first document of a row, counted through all sources. Not with packing.
  int64_t document(int64_t index) const { return plan_.first_document(index); }
  // Rows that are none; see LeftOut.
  int64_t num_left_out() const { return plan_.num_left_out(); }

 private:
  const Corpus corpus_;
  const RowPlan plan_;
  const bool one_document_a_row_;
  const std::string key_;
  std::unique_ptr<const MismatchedRows> mismatched_;
};

}  // namespace tessera
