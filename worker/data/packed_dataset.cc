#include "worker/data/packed_dataset.h"

namespace tessera {

PackedDataset::PackedDataset(std::vector<std::unique_ptr<TokenStore>> stores,
                             std::vector<uint32_t> order, const RowPlanOptions& options,
                             std::string key, int64_t rotation_rows)
    : corpus_(std::move(stores)),
      plan_(corpus_, std::move(order), options),
      one_document_a_row_(options.packing == PackingStrategy::kWrapped),
      key_(std::move(key)) {
  if (rotation_rows == 0) return;
  const std::string other_key = key_.empty() ? "" : key_ + "mismatched";
  mismatched_ = std::make_unique<MismatchedRows>(corpus_, plan_, rotation_rows, other_key);
}

Row PackedDataset::row(int64_t index) const {
  Row row;
  plan_.for_each(index, [&](int64_t document, int64_t begin, int64_t length) {
    const auto [store, at] = corpus_.find(document);
    store.append_tokens(at, begin, length, row.tokens);
    if (corpus_.has_masks()) store.append_mask(at, begin, length, row.loss_mask);
    if (corpus_.has_values()) row.values.push_back(store.value(at));
    if (!one_document_a_row_) row.lengths.push_back(static_cast<int32_t>(length));
  });
  if (one_document_a_row_) row.lengths.push_back(static_cast<int32_t>(row.tokens.size()));
  return row;
}

std::vector<int32_t> PackedDataset::lengths(int64_t index) const {
  if (one_document_a_row_) return {static_cast<int32_t>(num_tokens(index))};
  std::vector<int32_t> lengths;
  plan_.for_each(index, [&](int64_t, int64_t, int64_t length) {
    lengths.push_back(static_cast<int32_t>(length));
  });
  return lengths;
}

int64_t PackedDataset::num_tokens(int64_t index) const {
  int64_t total = 0;
  plan_.for_each(index, [&](int64_t, int64_t, int64_t length) { total += length; });
  return total;
}

int64_t PackedDataset::num_labels(int64_t index) const {
  int64_t total = 0;
  bool begins_document = true;  // whose first token nothing predicts
  plan_.for_each(index, [&](int64_t document, int64_t begin, int64_t length) {
    const auto [store, at] = corpus_.find(document);
    const int64_t skipped = begins_document ? 1 : 0;
    total += store.count(at, begin + skipped, length - skipped);
    begins_document = !one_document_a_row_;
  });
  return total;
}

}  // namespace tessera
