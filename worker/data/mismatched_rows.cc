#include "worker/data/mismatched_rows.h"

#include <algorithm>

namespace tessera {

MismatchedRows::MismatchedRows(const Corpus& corpus, const RowPlan& plan, int64_t rotation_rows,
                               std::string key)
    : corpus_(corpus), plan_(plan), rotation_rows_(rotation_rows), key_(std::move(key)) {}

MismatchedRows::Parts MismatchedRows::parts(int64_t index) const {
  const int64_t group = index / rotation_rows_ * rotation_rows_;
  const int64_t group_end = std::min(plan_.size(), group + rotation_rows_);
  const int64_t other = index == group ? group_end - 1 : index - 1;
  Parts parts{};
  parts.prompt_document = plan_.first_document(index);
  parts.prompt_length = std::min(plan_.max_length(), corpus_.prompt_length(parts.prompt_document));
  parts.completion_document = plan_.first_document(other);
  parts.completion_begin = corpus_.prompt_length(parts.completion_document);
  parts.completion_length =
      std::min(plan_.max_length() - parts.prompt_length,
               corpus_.length(parts.completion_document) - parts.completion_begin);
  return parts;
}

Row MismatchedRows::row(int64_t index) const {
  const Parts of = parts(index);
  Row row;
  const auto prompt = corpus_.find(of.prompt_document);
  prompt.store.append_tokens(prompt.document, 0, of.prompt_length, row.tokens);
  const auto completion = corpus_.find(of.completion_document);
  completion.store.append_tokens(completion.document, of.completion_begin, of.completion_length,
                                 row.tokens);
  row.loss_mask.assign(row.tokens.size(), 1);
  std::fill_n(row.loss_mask.begin(), of.prompt_length, uint8_t{0});
  row.lengths.push_back(static_cast<int32_t>(row.tokens.size()));
  return row;
}

int64_t MismatchedRows::num_tokens(int64_t index) const {
  const Parts of = parts(index);
  return of.prompt_length + of.completion_length;
}

int64_t MismatchedRows::num_labels(int64_t index) const {
  const Parts of = parts(index);
  const bool begins_with_label = of.prompt_length == 0 && of.completion_length > 0;
  return of.completion_length - (begins_with_label ? 1 : 0);
}

std::vector<int32_t> MismatchedRows::lengths(int64_t index) const {
  return {static_cast<int32_t>(num_tokens(index))};
}

}  // namespace tessera
