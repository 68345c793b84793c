// The table of one instruction set. A source file that includes this is compiled with its flags.
#pragma once

#include "worker/kernels/vec_adamw.h"
#include "worker/kernels/vec_attention.h"
#include "worker/kernels/vec_divergence.h"
#include "worker/kernels/vec_norm.h"
#include "worker/kernels/vec_paged.h"
#include "worker/kernels/vec_pointwise.h"
#include "worker/kernels/vec_product.h"
#include "worker/kernels/vec_quantized.h"
#include "worker/kernels/vec_softmax.h"

namespace tessera {
namespace {

template <int kLanes, typename T>
constexpr CpuTypedKernels<T> typed_kernels() {
  return {rms_norm<kLanes, T>,       rms_norm_backward<kLanes, T>, rotate<kLanes, T>,
          swiglu<kLanes, T>,         swiglu_backward<kLanes, T>,   label_stats<kLanes, T>,
          logit_gradient<kLanes, T>, dequantize_nf4<kLanes, T>,    dequantize_int8<kLanes, T>,
          divergence<kLanes, T>,     page_scores<kLanes, T>,       page_values<kLanes, T>};
}

template <int kLanes>
constexpr CpuKernels make_kernels(const char* name) {
  return {name,
          typed_kernels<kLanes, float>(),
          typed_kernels<kLanes, Bfloat>(),
          adamw<kLanes>,
          adamw_bfloat<kLanes>,
          adamw_int8<kLanes>,
          softmax<kLanes>,
          probabilities<kLanes>,
          score_gradient<kLanes>,
          dot<kLanes>,
          row_products<kLanes>};
}

}  // namespace
}  // namespace tessera
