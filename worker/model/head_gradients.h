// What the heads that work on chunks of tokens make gradients with.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "worker/model/weight_gradient.h"

namespace tessera {

// Gradients of the hidden states and the output matrix, a chunk of labelled tokens at a time.
class HeadGradients {
 public:
  // weight_VD must outlive it. The matrix has a gradient where it `needs_weight` or has a sink.
  HeadGradients(const at::Tensor& hidden_TD, const at::Tensor& weight_VD, bool needs_weight,
                GradientSink* sink);

  // Of tokens rows_C with hidden states hidden_CD. `scratch`: see LogitChunks.
  void add(const at::Tensor& rows_C, const at::Tensor& hidden_CD, const at::Tensor& grad_logits_CV,
           const at::Tensor& scratch);

  at::Tensor hidden() const { return hidden_TD_; }
  // Undefined where none is wanted, or the sink has it.
  at::Tensor finish_weight();

 private:
  at::Tensor hidden_TD_;
  std::optional<WeightGradient> weight_gradient_;
  const at::Tensor& weight_VD_;
};

// Whether backward got the gradient that forward was told of; true of tensors without values.
bool gradients_agree(const at::Tensor& given, const at::Tensor& known);

}  // namespace tessera
