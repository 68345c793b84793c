// Quantized matrices by LibTorch's operators: on devices that worker/kernels/quantized_ops.h has no
// kernels for.
#pragma once

#include "worker/kernels/quantized_ops.h"

namespace tessera {

// As dequantize_out(). Works on some millions of values at a time, which bounds what it takes
// beside `out`; of tensors without data one part is gone through for all.
void dequantize_by_aten(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                        const QuantizedLayout& layout, int64_t begin);

}  // namespace tessera
