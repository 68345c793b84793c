#include "worker/objectives/values.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include "worker/model/scored_rows.h"

namespace tessera {
namespace {

// `ends_S`, but 0 where other ranks have the last token.
at::Tensor if_here(const at::Tensor& ends_S, const ScoredRows& ends) {
  return ends.here_S.defined() ? ends_S * ends.here_S : ends_S;
}

}  // namespace

at::Tensor predict_values(DecoderModel& model, const Batch& batch, const ForwardOptions& forward) {
  const ScoredRows ends = scored_rows(batch, batch.tokens_T.device());
  const int64_t labels = batch.label_rows_L.size(0);
  const at::Tensor values_V =
      model.scores_at(model.forward(batch, forward), at::cat({batch.label_rows_L, ends.rows_S}));
  if (!ends.here_S.defined()) return values_V;
  return at::cat({values_V.narrow(0, 0, labels),
                  if_here(values_V.narrow(0, labels, values_V.size(0) - labels), ends)});
}

at::Tensor value_counts(const Batch& batch) {
  const ScoredRows ends = scored_rows(batch, batch.tokens_T.device());
  const at::Tensor& counts_S = batch.completions->end_counts_S;
  const at::Tensor ones_L = at::ones({batch.label_rows_L.size(0)}, counts_S.options());
  return at::cat({ones_L, if_here(counts_S, ends)}).to(at::kDouble);
}

}  // namespace tessera
