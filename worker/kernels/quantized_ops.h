// Matrices as bytes: bitsandbytes' NF4, and the weights of its LLM.int8.
//
// NF4: each kNf4Block values of the matrix, row by row, become codes of 4 bits and the scale that
// is the largest of their sizes. Nested, the scales less their mean become 8-bit codes of a dynamic
// map, with a scale each kNf4ScaleGroup. int8: a code a weight, a scale a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

// Of an int8 weight: its code times this times the largest of its row.
inline constexpr float kInt8Step = 0.007874015718698502f;

enum class Quantization : uint8_t { kNone, kNf4, kNf4Nested, kInt8 };

// Where what lies in the bytes of a matrix. Parts begin at multiples of 16 bytes.
struct QuantizedLayout {
  int64_t numel = 0, width = 0;  // of the matrix: all values, and those of a row
  int64_t num_scales = 0;
  int64_t scales = 0;        // byte of the scales: float32, or nested codes
  int64_t group_scales = 0;  // nested: byte of their scales, float32
  int64_t offset = 0;        // nested: byte of the scales' mean, float32
  int64_t bytes = 0;         // in all
};
QuantizedLayout quantized_layout(Quantization kind, int64_t rows, int64_t width);

// Writes elements [begin, begin + out.numel()) of the matrix that `bytes` holds, in out's dtype:
// float32 or bfloat16, contiguous. `begin` is at a multiple of kNf4Block (int8: of the width).
void dequantize_out(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                    const QuantizedLayout& layout, int64_t begin);

// Codes and scales of float32 values on the CPU that begin at a block (int8: at a row), and end at
// one or with the matrix.
void quantize_nf4(const float* values, int64_t count, uint8_t* codes, float* scales);
void quantize_int8(const float* values, int64_t rows, int64_t width, int8_t* codes, float* scales);
// All scales of a matrix, nested: writes a code each, a float32 scale a group, and their mean.
void nest_scales(const at::Tensor& scales, uint8_t* codes, float* group_scales, float* mean);

}  // namespace tessera
