#include "worker/kernels/quantized_ops.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/dynamic_map.h"
#include "worker/kernels/nf4.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

constexpr int64_t kPartAlignment = 16;
constexpr float kSmallestScale = 1e-38f;
constexpr int64_t kGrainBlocks = 1024;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t aligned(int64_t bytes) { return ceil_div(bytes, kPartAlignment) * kPartAlignment; }

// The index of the value nearest to x among sorted ones.
template <typename Values>
int nearest(const Values& values, float x) {
  const auto above =
      std::partition_point(values.begin(), values.end() - 1,
                           [&](const float& value) { return (value + (&value)[1]) / 2 < x; });
  return static_cast<int>(above - values.begin());
}

template <typename T>
const T* part_of(const at::Tensor& bytes, int64_t begin) {
  return reinterpret_cast<const T*>(bytes.const_data_ptr<uint8_t>() + begin);
}

// Scales [first, first + out.size()) of nested codes.
void unnest(std::span<float> out, const at::Tensor& bytes, const QuantizedLayout& layout,
            int64_t first) {
  const uint8_t* codes = part_of<uint8_t>(bytes, layout.scales);
  const float* groups = part_of<float>(bytes, layout.group_scales);
  const float mean = *part_of<float>(bytes, layout.offset);
  const DynamicMap& map = signed_dynamic_map();
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = first + static_cast<int64_t>(i);
    out[i] = map.values[codes[at]] * groups[at / kNf4ScaleGroup] + mean;
  }
}

template <typename T>
void dequantize_nf4_blocks(T* out, int64_t count, const at::Tensor& bytes, bool nested,
                           const QuantizedLayout& layout, int64_t begin) {
  const auto dequantize = cpu_kernels().of<T>().dequantize_nf4;
  at::parallel_for(0, ceil_div(count, kNf4Block), kGrainBlocks, [&](int64_t first, int64_t last) {
    std::array<float, kNf4ScaleGroup> unnested;
    for (int64_t block = first; block < last; block += kNf4ScaleGroup) {
      const int64_t blocks = std::min(kNf4ScaleGroup, last - block);
      const int64_t at = begin + block * kNf4Block;
      const float* scales = part_of<float>(bytes, layout.scales) + at / kNf4Block;
      if (nested) {
        unnest(std::span(unnested).first(blocks), bytes, layout, at / kNf4Block);
        scales = unnested.data();
      }
      dequantize(out + block * kNf4Block, part_of<uint8_t>(bytes, at / 2), scales,
                 std::min(blocks * kNf4Block, count - block * kNf4Block));
    }
  });
}

template <typename T>
void dequantize_on_cpu(T* out, int64_t count, const at::Tensor& bytes, Quantization kind,
                       const QuantizedLayout& layout, int64_t begin) {
  if (kind != Quantization::kInt8) {
    return dequantize_nf4_blocks(out, count, bytes, kind == Quantization::kNf4Nested, layout,
                                 begin);
  }
  const auto dequantize = cpu_kernels().of<T>().dequantize_int8;
  const float* scales = part_of<float>(bytes, layout.scales);
  const int8_t* codes = part_of<int8_t>(bytes, 0);
  const int64_t width = layout.width, first_row = begin / width;
  const int64_t grain = ceil_div(kGrainBlocks * kNf4Block, width);
  at::parallel_for(0, ceil_div(count, width), grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      dequantize(out + row * width, codes + begin + row * width,
                 scales[first_row + row] * kInt8Step, std::min(width, count - row * width));
    }
  });
}

at::Tensor part_by_aten(const at::Tensor& bytes, int64_t begin, int64_t count,
                        at::ScalarType dtype) {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, begin, count * size).view(dtype);
}

at::Tensor table_by_aten(const float* values, int64_t count, const at::Tensor& like) {
  return at::tensor(c10::ArrayRef<float>(values, count), at::kFloat).to(like.device());
}

// Any other device.
void dequantize_by_aten(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                        const QuantizedLayout& layout, int64_t begin) {
  const bool whole_bytes = kind == Quantization::kInt8;
  const int64_t count = out.numel(), block = whole_bytes ? layout.width : kNf4Block;
  const int64_t first = begin / block, blocks = ceil_div(count, block);
  at::Tensor scales;
  if (kind == Quantization::kNf4Nested) {
    const at::Tensor codes = part_by_aten(bytes, layout.scales + first, blocks, at::kByte);
    const at::Tensor groups = part_by_aten(bytes, layout.group_scales,
                                           ceil_div(layout.num_scales, kNf4ScaleGroup), at::kFloat)
                                  .repeat_interleave(kNf4ScaleGroup)
                                  .narrow(0, first, blocks);
    const at::Tensor map = table_by_aten(signed_dynamic_map().values, DynamicMap::kNumCodes, bytes);
    scales = map.index_select(0, codes.to(at::kInt)) * groups +
             part_by_aten(bytes, layout.offset, 1, at::kFloat);
  } else {
    scales = part_by_aten(bytes, layout.scales + first * 4, blocks, at::kFloat);
  }
  at::Tensor values;
  if (whole_bytes) {
    values = part_by_aten(bytes, begin, count, at::kChar).to(at::kFloat);
    scales = scales * kInt8Step;
  } else {
    const at::Tensor pairs = bytes.narrow(0, begin / 2, ceil_div(count, 2));
    const at::Tensor codes = at::stack({pairs.div(16, "floor"), pairs.remainder(16)}, 1);
    values = table_by_aten(kNf4Values, 16, bytes)
                 .index_select(0, codes.flatten().narrow(0, 0, count).to(at::kInt));
  }
  out.view({-1}).copy_(values.mul_(scales.repeat_interleave(block).narrow(0, 0, count)));
}

}  // namespace

QuantizedLayout quantized_layout(Quantization kind, int64_t rows, int64_t width) {
  QuantizedLayout layout;
  layout.numel = rows * width;
  layout.width = width;
  if (kind == Quantization::kInt8) {
    layout.num_scales = rows;
    layout.scales = aligned(layout.numel);
    layout.bytes = layout.scales + 4 * rows;
    return layout;
  }
  layout.num_scales = ceil_div(layout.numel, kNf4Block);
  layout.scales = aligned(ceil_div(layout.numel, 2));
  if (kind == Quantization::kNf4) {
    layout.bytes = layout.scales + 4 * layout.num_scales;
    return layout;
  }
  layout.group_scales = aligned(layout.scales + layout.num_scales);
  layout.offset = layout.group_scales + 4 * ceil_div(layout.num_scales, kNf4ScaleGroup);
  layout.bytes = layout.offset + 4;
  return layout;
}

void dequantize_out(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                    const QuantizedLayout& layout, int64_t begin) {
  count_kernel(/*flops=*/0, {out, bytes});
  if (out.is_meta()) return;
  const c10::NoGradGuard no_grad;
  if (!on_cpu(bytes)) return dequantize_by_aten(out, bytes, kind, layout, begin);
  if (out.scalar_type() == at::kFloat) {
    dequantize_on_cpu(out.mutable_data_ptr<float>(), out.numel(), bytes, kind, layout, begin);
  } else {
    TORCH_CHECK(out.scalar_type() == at::kBFloat16, "dequantize to ", out.scalar_type());
    dequantize_on_cpu(reinterpret_cast<Bfloat*>(out.mutable_data_ptr()), out.numel(), bytes, kind,
                      layout, begin);
  }
}

void quantize_nf4(const float* values, int64_t count, uint8_t* codes, float* scales) {
  constexpr std::span<const float, 16> kValues(kNf4Values);
  at::parallel_for(0, ceil_div(count, kNf4Block), kGrainBlocks, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kNf4Block, end = std::min(begin + kNf4Block, count);
      float largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
      scales[block] = largest;
      const float scale = 1.0f / std::max(largest, kSmallestScale);
      const auto code_of = [&](int64_t i) {
        return i < end ? nearest(kValues, std::clamp(values[i] * scale, -1.0f, 1.0f)) : 7;
      };
      for (int64_t i = begin; i < end; i += 2)
        codes[i / 2] = static_cast<uint8_t>(code_of(i) << 4 | code_of(i + 1));
    }
  });
}

void quantize_int8(const float* values, int64_t rows, int64_t width, int8_t* codes, float* scales) {
  const int64_t grain = ceil_div(kGrainBlocks * kNf4Block, width);
  at::parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* from = values + row * width;
      float largest = 0;
      for (int64_t i = 0; i < width; ++i) largest = std::max(largest, std::abs(from[i]));
      scales[row] = largest;
      const float scale = largest > 0 ? 1.0f / largest * 127.0f : 0.0f;  // in this order, as there
      for (int64_t i = 0; i < width; ++i)
        codes[row * width + i] = static_cast<int8_t>(std::nearbyint(from[i] * scale));
    }
  });
}

void nest_scales(const at::Tensor& scales, uint8_t* codes, float* group_scales, float* mean) {
  const c10::NoGradGuard no_grad;
  *mean = scales.mean().item<float>();
  const at::Tensor centred = scales - *mean;
  const float* values = centred.const_data_ptr<float>();
  const std::span<const float, DynamicMap::kNumCodes> map(signed_dynamic_map().values);
  for (int64_t begin = 0; begin < centred.numel(); begin += kNf4ScaleGroup) {
    const int64_t end = std::min(begin + kNf4ScaleGroup, centred.numel());
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    group_scales[begin / kNf4ScaleGroup] = largest;
    const float scale = 1.0f / std::max(largest, kSmallestScale);
    for (int64_t i = begin; i < end; ++i)
      codes[i] = static_cast<uint8_t>(nearest(map, std::clamp(values[i] * scale, -1.0f, 1.0f)));
  }
}

}  // namespace tessera
