// The logits of a chunk of labelled tokens at a time: what they say of the labels, and their
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/kernels/tensor_ops.h"

namespace tessera {

// float32 [count] each, the last two where they are wanted.
struct MoreLabelStats {
  bool mean_logit = false, log_sum_sq = false;
};
LabelStatsOut make_label_stats(int64_t count, const at::TensorOptions& options,
                               const MoreLabelStats& more = {});
// Tokens [begin, begin + count) of them, as views.
LabelStatsOut narrow(const LabelStatsOut& stats, int64_t begin, int64_t count);

// Two buffers of `chunk_tokens` x V values that all chunks share, one of them in float32; in
// float32 one buffer. On other devices than CPUs ATen's operators do the work.
class LogitChunks {
 public:
  // weight_VD must outlive it.
  LogitChunks(const at::Tensor& weight_VD, int64_t chunk_tokens);

  // Makes the logits of at most chunk_tokens tokens and fills `stats`.
  void run(const at::Tensor& hidden_CD, const at::Tensor& labels_C, const LabelStatsOut& stats);
  // Their gradient [C, V] in the compute dtype, from those of logprob_C and (unless undefined)
  // mean_logprob_C. Uses up what run() left; good until the next run().
  at::Tensor gradient(const at::Tensor& labels_C, const LabelStatsOut& stats,
                      const at::Tensor& grad_logprob_C, const at::Tensor& grad_mean_logprob_C);
  // Memory that nobody uses between gradient() and the next run(): contiguous, [n] in the compute
  // dtype. Undefined in float32.
  at::Tensor scratch() const;

 private:
  const at::Tensor& weight_VD_;
  at::Tensor logits_;  // in the compute dtype
  at::Tensor exps_;    // float32; logits_ itself where that is float32
};

}  // namespace tessera
