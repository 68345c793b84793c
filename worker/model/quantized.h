// Frozen matrices whose values are kept as bytes, and made again where a product needs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "worker/kernels/quantized_ops.h"
#include "worker/model/layer.h"

namespace tessera {

class DecoderModel;

// Quantizes every frozen matrix of the blocks, those of experts too: not the embedding, the head,
// the norms or what chooses experts.
void quantize_matrices(DecoderModel& model, Quantization kind);

// The matrix [rows, width] that the bytes in `parameter.value` stand for, or some of its rows, in a
// new tensor. Charged to Owner::kCommunication, like the bytes that were gathered.
at::Tensor dequantized(const Parameter& parameter, at::ScalarType dtype);
at::Tensor dequantized_rows(const Parameter& parameter, int64_t first, int64_t count,
                            at::ScalarType dtype);

// x_TI times the transposed matrix. Differentiable by x. Keeps only the bytes.
at::Tensor quantized_product(const at::Tensor& x_TI, const Parameter& parameter);

// Fills a tensor with a parameter's elements from `begin` on: float32, 1-D, on the CPU.
using ElementReader = std::function<void(int64_t begin, const at::Tensor& out)>;
// Bytes [begin, begin + out.numel()) of a quantized parameter, made from its elements, some
// megabytes at a time. The same for any division into parts: blocks count from the beginning of the
// matrix. Nested scales need all elements of the matrix for each part that holds some of them.
void read_quantized(const Parameter& parameter, const ElementReader& elements, int64_t begin,
                    const at::Tensor& out);

}  // namespace tessera
