// From tokens to documents to rows: what methods that take a document as one answer work on.
//
// S documents of rows on this rank, R rows on this rank, L labels on this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/batch.h"
#include "worker/model/decoder.h"
#include "worker/objectives/objective.h"
#include "worker/parallel/collectives.h"

namespace tessera {

// Sums over the labels of each document, on whatever ranks they are: float64 [S, columns], of
// columns that are [T] of any floating type. Differentiable.
at::Tensor sum_by_document(const std::vector<at::Tensor>& columns_T, const Batch& batch);

// The same of values_Lk [L, k] of the labels alone: [S, k], of its type, float32 or float64.
at::Tensor sum_labels_by_document(const at::Tensor& values_Lk, const Batch& batch);

// Labels of each document, on all ranks: float64 [S].
at::Tensor count_labels(const Batch& batch);

// float32 [T], of a batch of pairs: 1 for the labels of a completion up to the length of the pair's
// shorter one, `alpha` for those beyond, 0 where there is no label.
at::Tensor tail_weights(const Batch& batch, double alpha);

// Log-probabilities of the completions under a model that is not trained: float64 [S], where labels
// count tail_weights with that alpha. Runs the model without autograd, as `forward` says.
at::Tensor score_completions(DecoderModel& model, const Batch& batch, const ForwardOptions& forward,
                             double tail_alpha = 1);
// The reference's: computed beforehand, of a model of its own, or of the policy without adapters.
at::Tensor reference_logps(const Models& models, const Batch& batch, double tail_alpha = 1);

// log p of a model less that of the reference, float64 [S]. Differentiable by logps_S, which
// are the documents' of that batch.
at::Tensor log_ratios(const at::Tensor& logps_S, const at::Tensor& reference_S, const Batch& batch);

// The rows of all data-parallel ranks [rows of all, ...], in the order of ranks, from those of each
// [R, ...]. The gradient goes to this rank's own part only. Collective.
at::Tensor gather_rows(const at::Tensor& mine_R, const Batch& batch, Collectives& data);

}  // namespace tessera
