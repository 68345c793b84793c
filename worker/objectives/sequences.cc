#include "worker/objectives/sequences.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "worker/kernels/stand_in.h"
#include "worker/model/context.h"

namespace tessera {
namespace {

// Tokens of each document: int64 [S].
at::Tensor document_lengths(const Batch& batch) {
  const auto& cu_seqlens = batch.documents.cu_seqlens;
  std::vector<int64_t> lengths(cu_seqlens.size());
  std::adjacent_difference(cu_seqlens.begin(), cu_seqlens.end(), lengths.begin());
  const at::Device device = batch.labels_T.device();
  const at::Tensor all =
      at::tensor(lengths, at::TensorOptions(host_device(device)).dtype(at::kLong));
  return all.narrow(0, 1, batch.num_sequences).to(device);
}

}  // namespace

at::Tensor sum_labels_by_document(const at::Tensor& values_Lk, const Batch& batch) {
  const at::Tensor none_Sk =
      at::zeros({batch.num_sequences, values_Lk.size(1)}, values_Lk.options());
  return sum_over_context(none_Sk.index_add(0, batch.label_documents_L, values_Lk),
                          batch.documents);
}

at::Tensor sum_by_document(const std::vector<at::Tensor>& columns_T, const Batch& batch) {
  // In float64: log-probabilities of long documents are compared, and little of them is left then.
  return sum_labels_by_document(
      at::stack(columns_T, 1).index_select(0, batch.label_rows_L).to(at::kDouble), batch);
}

at::Tensor count_labels(const Batch& batch) {
  const at::Tensor ones_L1 =
      at::ones({batch.label_rows_L.size(0), 1}, batch.labels_T.options().dtype(at::kDouble));
  return sum_labels_by_document(ones_L1, batch).squeeze(1);
}

at::Tensor tail_weights(const Batch& batch, double alpha) {
  const at::Tensor labels_S = count_labels(batch).to(at::kLong);
  const at::Tensor labels_P2 = labels_S.view({-1, 2});
  const at::Tensor shorter_S =
      at::minimum(labels_P2.select(1, 0), labels_P2.select(1, 1)).repeat_interleave(2);
  // A completion goes up to the end of its document, whose last token has no label.
  const at::Tensor first_S = document_lengths(batch) - 1 - labels_S;
  const at::Tensor end_L = (first_S + shorter_S).index_select(0, batch.label_documents_L);
  const at::Tensor positions_L = batch.documents.positions_T.index_select(0, batch.label_rows_L);
  const auto options = batch.labels_T.options().dtype(at::kFloat);
  const at::Tensor weights_L =
      at::where(positions_L < end_L, at::ones({}, options), at::full({}, alpha, options));
  return at::zeros(batch.labels_T.sizes(), options).index_copy(0, batch.label_rows_L, weights_L);
}

at::Tensor score_completions(DecoderModel& model, const Batch& batch, const ForwardOptions& forward,
                             double tail_alpha) {
  const c10::AutoGradMode no_grad(false);
  const HeadOutput head = model.head(model.forward(batch, forward), batch);
  at::Tensor logprobs_T = head.logprobs_T;
  if (tail_alpha != 1) logprobs_T = logprobs_T * tail_weights(batch, tail_alpha);
  return sum_by_document({logprobs_T}, batch).squeeze(1);
}

at::Tensor reference_logps(const Models& models, const Batch& batch, double tail_alpha) {
  if (batch.reference_logps_S.defined()) return batch.reference_logps_S.to(at::kDouble);
  if (models.reference != nullptr)
    return score_completions(*models.reference, batch, {}, tail_alpha);
  return score_completions(models.policy, batch, {.adapters = false}, tail_alpha);
}

at::Tensor log_ratios(const at::Tensor& logps_S, const at::Tensor& reference_S,
                      const Batch& batch) {
  // Those that were computed beforehand are rounded to float32. What is compared with them is
  // rounded alike: then the ratios of a model that is still the reference are 0.
  if (batch.reference_logps_S.defined())
    return logps_S.to(at::kFloat).to(at::kDouble) - reference_S;
  return logps_S - reference_S;
}

at::Tensor gather_rows(const at::Tensor& mine_R, const Batch& batch, Collectives& data) {
  if (data.size() == 1) return mine_R;
  const std::vector<int64_t>& rows = batch.rows_of_rank;
  const int64_t most = std::max<int64_t>(1, std::ranges::max(rows));
  std::vector<int64_t> shape = mine_R.sizes().vec();
  const int64_t width = c10::multiply_integers(shape.begin() + 1, shape.end());
  at::Tensor gathered;
  {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor padded = at::zeros({most * width}, mine_R.options());
    padded.narrow(0, 0, mine_R.numel()).copy_(mine_R.flatten());
    gathered = at::empty({data.size() * most * width}, mine_R.options());
    data.all_gather(gathered, padded)->wait();
  }
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < data.size(); ++rank) {
    shape[0] = rows[rank];
    const at::Tensor part = gathered.narrow(0, rank * most * width, rows[rank] * width).view(shape);
    parts.push_back(rank == data.rank() ? mine_R : part);
  }
  return at::cat(parts);
}

}  // namespace tessera
