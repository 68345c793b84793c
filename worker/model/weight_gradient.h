// The gradient of the head's matrix, summed over chunks of tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/gradient_sink.h"

namespace tessera {

// In float32, whatever the compute dtype: in its sink, where that is float32, or else in memory of
// its own that is copied there at the end.
class WeightGradient {
 public:
  // `sink` may be null.
  WeightGradient(const at::Tensor& weight_VD, GradientSink* sink);

  // += grad_logits_CV.t() @ hidden_CD. `scratch`: see LogitChunks.
  void add(const at::Tensor& grad_logits_CV, const at::Tensor& hidden_CD,
           const at::Tensor& scratch);
  // All chunks are in, and what they needed had better be gone. Undefined where there is a sink: it
  // has the sum.
  at::Tensor finish();

 private:
  void multiply(const at::Tensor& grad_logits_CV, const at::Tensor& hidden_CD);
  void add_in_parts(const at::Tensor& grad_logits_CV, const at::Tensor& hidden_CD,
                    const at::Tensor& scratch);

  at::ScalarType dtype_;
  GradientSink* sink_;
  bool in_sink_;  // whether sum_VD_ is the sink's
  at::Tensor sum_VD_;
  bool begun_ = false;
};

}  // namespace tessera
