// Rows out of stores of tokenised documents.
#pragma once

#include <memory>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/row_plan.h"

namespace tessera {

class PackedDataset final : public Dataset {
 public:
  // `order` and `options` as in RowPlan.
  PackedDataset(std::vector<std::unique_ptr<TokenStore>> stores, std::vector<uint32_t> order,
                const RowPlanOptions& options);

  int64_t size() const override { return plan_.size(); }
  Row row(int64_t index) const override;
  int64_t num_tokens(int64_t index) const override;
  int64_t num_labels(int64_t index) const override;
  std::vector<int32_t> lengths(int64_t index) const override;

 private:
  const Corpus corpus_;
  const RowPlan plan_;
  const bool one_document_a_row_;
};

}  // namespace tessera
