#include "worker/kernels/quantized_ops.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/mean.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/cuda_ops.h"
#include "worker/kernels/dynamic_map.h"
#include "worker/kernels/nf4.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

constexpr int64_t kPartAlignment = 16;
constexpr float kSmallestScale = 1e-38f;
constexpr int64_t kGrainBlocks = 1024;

int64_t aligned(int64_t bytes) { return at::round_up(bytes, kPartAlignment); }

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
  at::parallel_for(0, at::ceil_div(count, kNf4Block), kGrainBlocks,
                   [&](int64_t first, int64_t last) {
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
  const int64_t grain = at::ceil_div(kGrainBlocks * kNf4Block, width);
  at::parallel_for(0, at::ceil_div(count, width), grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      dequantize(out + row * width, codes + begin + row * width,
                 scales[first_row + row] * kInt8Step, std::min(width, count - row * width));
    }
  });
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
  layout.num_scales = at::ceil_div(layout.numel, kNf4Block);
  layout.scales = aligned(at::ceil_div(layout.numel, int64_t{2}));
  if (kind == Quantization::kNf4) {
    layout.bytes = layout.scales + 4 * layout.num_scales;
    return layout;
  }
  layout.group_scales = aligned(layout.scales + layout.num_scales);
  layout.offset = layout.group_scales + 4 * at::ceil_div(layout.num_scales, kNf4ScaleGroup);
  layout.bytes = layout.offset + 4;
  return layout;
}

void dequantize_out(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                    const QuantizedLayout& layout, int64_t begin) {
  if (out.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  const auto share = static_cast<double>(out.numel()) / static_cast<double>(layout.numel);
  count_kernel(/*flops=*/0, static_cast<int64_t>(out.nbytes()) +
                                static_cast<int64_t>(share * static_cast<double>(layout.bytes)));
  if (out.is_meta()) return;
  if (out.is_cuda()) return cuda::dequantize_out(out, bytes, kind, layout, begin);
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
  at::parallel_for(
      0, at::ceil_div(count, kNf4Block), kGrainBlocks, [&](int64_t first, int64_t last) {
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
  const int64_t grain = at::ceil_div(kGrainBlocks * kNf4Block, width);
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
