#include "worker/kernels/quantized_aten.h"

#include <ATen/TensorOperators.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "worker/kernels/device_table.h"
#include "worker/kernels/dynamic_map.h"
#include "worker/kernels/nf4.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

// Values that are made at a time: enough to keep a GPU busy, in some 60 MiB.
constexpr int64_t kPartValues = 1 << 22;

at::Tensor part_by_aten(const at::Tensor& bytes, int64_t begin, int64_t count,
                        at::ScalarType dtype) {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, begin, count * size).view(dtype);
}

// The scale of each of `blocks` blocks from number `first` on.
at::Tensor scales_by_aten(const at::Tensor& bytes, Quantization kind, const QuantizedLayout& layout,
                          int64_t first, int64_t blocks) {
  if (kind != Quantization::kNf4Nested)
    return part_by_aten(bytes, layout.scales + first * 4, blocks, at::kFloat);
  const int64_t first_group = first / kNf4ScaleGroup;
  const int64_t groups = at::ceil_div(first + blocks, kNf4ScaleGroup) - first_group;
  const at::Tensor of_groups =
      part_by_aten(bytes, layout.group_scales + first_group * 4, groups, at::kFloat)
          .repeat_interleave(kNf4ScaleGroup)
          .narrow(0, first - first_group * kNf4ScaleGroup, blocks);
  const at::Tensor codes = part_by_aten(bytes, layout.scales + first, blocks, at::kByte);
  return look_up(signed_dynamic_map().values, codes)
      .mul_(of_groups)
      .add_(part_by_aten(bytes, layout.offset, 1, at::kFloat));
}

// out [n] are elements of the matrix from `begin` on.
void dequantize_part_by_aten(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                             const QuantizedLayout& layout, int64_t begin) {
  const bool whole_bytes = kind == Quantization::kInt8;
  const int64_t count = out.numel(), block = whole_bytes ? layout.width : kNf4Block;
  at::Tensor scales =
      scales_by_aten(bytes, kind, layout, begin / block, at::ceil_div(count, block));
  at::Tensor values;
  if (whole_bytes) {
    values = part_by_aten(bytes, begin, count, at::kChar).to(at::kFloat);
    scales = scales * kInt8Step;
  } else {
    const at::Tensor pairs = bytes.narrow(0, begin / 2, at::ceil_div(count, int64_t{2}));
    const at::Tensor codes = at::stack({pairs.div(16, "floor"), pairs.remainder(16)}, 1);
    values = look_up(kNf4Values, codes.flatten().narrow(0, 0, count));
  }
  out.copy_(values.mul_(scales.repeat_interleave(block).narrow(0, 0, count)));
}

}  // namespace

void dequantize_by_aten(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                        const QuantizedLayout& layout, int64_t begin) {
  const int64_t block = kind == Quantization::kInt8 ? layout.width : kNf4Block;
  const int64_t part = at::round_up(kPartValues, block), count = out.numel();
  const at::Tensor flat = out.view({-1});
  const auto dequantize = [&](int64_t done) {
    dequantize_part_by_aten(flat.narrow(0, done, std::min(part, count - done)), bytes, kind, layout,
                            begin + done);
  };
  if (out.is_meta()) return count_times(at::ceil_div(count, part), [&] { dequantize(0); });
  for (int64_t done = 0; done < count; done += part) dequantize(done);
}

}  // namespace tessera
