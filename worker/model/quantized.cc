#include "worker/model/quantized.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstring>

#include "worker/kernels/nf4.h"
#include "worker/memory/ledger.h"
#include "worker/model/decoder.h"
#include "worker/model/linear.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kPieceElements = 1 << 20;

struct QuantizedProduct : Function<QuantizedProduct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TI, int64_t parameter) {
    ctx->saved_data["parameter"] = parameter;
    return at::linear(x_TI, matrix(parameter, x_TI.scalar_type()));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const int64_t parameter = ctx->saved_data["parameter"].toInt();
    return {at::mm(grads[0], matrix(parameter, grads[0].scalar_type())), at::Tensor()};
  }

  static at::Tensor matrix(int64_t parameter, at::ScalarType dtype) {
    return dequantized(*reinterpret_cast<const Parameter*>(parameter), dtype);
  }
};

// The bytes of a matrix as they are made, of which a part is kept.
class BytePart {
 public:
  BytePart(int64_t begin, const at::Tensor& out) : begin_(begin), out_(out) {}
  bool touches(int64_t begin, int64_t end) const { return begin < this->end() && end > begin_; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return begin_ + out_.numel(); }

  void put(int64_t at, const void* data, int64_t bytes) const {
    const int64_t from = std::max(at, begin_), to = std::min(at + bytes, end());
    if (from >= to) return;
    std::memcpy(out_.mutable_data_ptr<uint8_t>() + (from - begin_),
                static_cast<const uint8_t*>(data) + (from - at), static_cast<size_t>(to - from));
  }

 private:
  int64_t begin_;
  at::Tensor out_;
};

// Makes the codes and scales of blocks [first, last), some at a time: sink(block, count, codes,
// scales). A block is kNf4Block elements, or a row of int8.
template <typename Sink>
void quantize_blocks(Quantization kind, const QuantizedLayout& layout,
                     const ElementReader& elements, int64_t first, int64_t last, const Sink& sink) {
  const bool rows = kind == Quantization::kInt8;
  const int64_t block = rows ? layout.width : kNf4Block;
  const int64_t step = std::max<int64_t>(1, kPieceElements / block);
  for (; first < last; first += step) {
    const int64_t count = std::min(step, last - first);
    const int64_t begin = first * block, end = std::min((first + count) * block, layout.numel);
    const at::Tensor values = at::empty({end - begin}, at::kFloat);
    elements(begin, values);
    const at::Tensor codes = at::empty({end - begin}, at::kByte);
    const at::Tensor scales = at::empty({count}, at::kFloat);
    const float* from = values.const_data_ptr<float>();
    if (rows) {
      quantize_int8(from, count, layout.width, static_cast<int8_t*>(codes.mutable_data_ptr()),
                    scales.mutable_data_ptr<float>());
    } else {
      quantize_nf4(from, end - begin, codes.mutable_data_ptr<uint8_t>(),
                   scales.mutable_data_ptr<float>());
    }
    sink(first, count, codes, scales);
  }
}

// Codes and plain scales that lie in `part`.
void put_blocks(const BytePart& part, Quantization kind, const QuantizedLayout& layout,
                const ElementReader& elements) {
  const bool rows = kind == Quantization::kInt8, nested = kind == Quantization::kNf4Nested;
  const int64_t code_bytes = rows ? layout.width : kNf4Block / 2;
  const int64_t all_codes = rows ? layout.numel : (layout.numel + 1) / 2;
  const auto put = [&](int64_t block, int64_t count, const at::Tensor& codes,
                       const at::Tensor& scales) {
    const int64_t bytes = std::min(count * code_bytes, all_codes - block * code_bytes);
    part.put(block * code_bytes, codes.const_data_ptr(), bytes);
    if (!nested) part.put(layout.scales + block * 4, scales.const_data_ptr(), count * 4);
  };
  if (part.touches(0, all_codes)) {
    const int64_t end = std::min(part.end(), all_codes);
    quantize_blocks(kind, layout, elements, part.begin() / code_bytes,
                    at::ceil_div(end, code_bytes), put);
  }
  if (!nested && part.touches(layout.scales, layout.bytes)) {
    const int64_t first = (std::max(part.begin(), layout.scales) - layout.scales) / 4;
    const int64_t last = (std::min(part.end(), layout.bytes) - layout.scales + 3) / 4;
    quantize_blocks(kind, layout, elements, first, last, put);
  }
}

void put_nested_scales(const BytePart& part, const QuantizedLayout& layout,
                       const ElementReader& elements) {
  const at::Tensor all = at::empty({layout.num_scales}, at::kFloat);
  quantize_blocks(Quantization::kNf4, layout, elements, 0, layout.num_scales,
                  [&](int64_t block, int64_t count, const at::Tensor&, const at::Tensor& scales) {
                    all.narrow(0, block, count).copy_(scales);
                  });
  std::vector<uint8_t> codes(layout.num_scales);
  std::vector<float> groups(at::ceil_div(layout.num_scales, kNf4ScaleGroup));
  float mean = 0;
  nest_scales(all, codes.data(), groups.data(), &mean);
  part.put(layout.scales, codes.data(), std::ssize(codes));
  part.put(layout.group_scales, groups.data(), 4 * std::ssize(groups));
  part.put(layout.offset, &mean, 4);
}

}  // namespace

void quantize_matrices(DecoderModel& model, Quantization kind) {
  for (const auto& layer : model.layers()) {
    for (Linear* linear : layer->linears()) {
      if (!linear->weight.trainable && !linear->is_router) linear->weight.quantization = kind;
    }
  }
}

at::Tensor dequantized_rows(const Parameter& parameter, int64_t first, int64_t count,
                            at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  const OwnerScope scope(Owner::kCommunication);
  const int64_t width = parameter.shape[1];
  // From the beginning of a block on.
  const bool rows = parameter.quantization == Quantization::kInt8;
  const int64_t skipped = rows ? 0 : first * width % kNf4Block;
  const at::Tensor values =
      at::empty({count * width + skipped}, parameter.value.options().dtype(dtype));
  dequantize_out(values, parameter.value, parameter.quantization, parameter.byte_layout(),
                 first * width - skipped);
  return values.narrow(0, skipped, count * width).view({count, width});
}

at::Tensor dequantized(const Parameter& parameter, at::ScalarType dtype) {
  return dequantized_rows(parameter, 0, parameter.shape[0], dtype);
}

at::Tensor quantized_product(const at::Tensor& x_TI, const Parameter& parameter) {
  return QuantizedProduct::apply(x_TI, reinterpret_cast<int64_t>(&parameter));
}

void read_quantized(const Parameter& parameter, const ElementReader& elements, int64_t begin,
                    const at::Tensor& out) {
  const c10::NoGradGuard no_grad;
  const OwnerScope scope(Owner::kOther);
  const QuantizedLayout layout = parameter.byte_layout();
  const BytePart part(begin, out);
  out.zero_();  // between the parts
  put_blocks(part, parameter.quantization, layout, elements);
  if (parameter.quantization == Quantization::kNf4Nested &&
      part.touches(layout.scales, layout.bytes)) {
    put_nested_scales(part, layout, elements);
  }
}

}  // namespace tessera
