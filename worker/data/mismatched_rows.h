// KTO's estimate of the divergence looks at prompts with completions of other rows.
#pragma once

#include <string>

#include "worker/data/dataset.h"
#include "worker/data/row_plan.h"

namespace tessera {

// Row i is the prompt of the plan's row i with the completion of the row before it among
// `rotation_rows` consecutive rows, the first of which takes the last one's; cut as the plan's
// documents are, at the end. A prompt is what stands before the first token that counts.
class MismatchedRows final : public Dataset {
 public:
  // Requires a plan of one document a row. Corpus and plan outlive this.
  MismatchedRows(const Corpus& corpus, const RowPlan& plan, int64_t rotation_rows, std::string key);

  int64_t size() const override { return plan_.size(); }
  Row row(int64_t index) const override;
  int64_t num_tokens(int64_t index) const override;
  int64_t num_labels(int64_t index) const override;
  std::vector<int32_t> lengths(int64_t index) const override;
  std::string key() const override { return key_; }

 private:
  struct Parts {
    int64_t prompt_document, prompt_length;  // as far as it stays
    int64_t completion_document, completion_begin, completion_length;
  };
  Parts parts(int64_t index) const;

  const Corpus& corpus_;
  const RowPlan& plan_;
  const int64_t rotation_rows_;
  const std::string key_;
};

}  // namespace tessera
