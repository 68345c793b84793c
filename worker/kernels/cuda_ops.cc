// Linked in place of no_cuda_ops.cc with TESSERA_CUDA.
#include "worker/kernels/cuda_ops.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/kernels/cuda/launches.h"

namespace tessera::cuda {
namespace {

template <typename T>
T* data_of(const at::Tensor& x) {
  return static_cast<T*>(x.defined() ? x.data_ptr() : nullptr);
}

template <typename T>
FlatRows<T> flat_rows(const at::Tensor& x) {
  if (!x.defined()) return {nullptr, 0};
  return {data_of<T>(x), x.stride(0)};
}

// [T, D] or [T, N, D].
template <typename T>
TokenRows<T> token_rows(const at::Tensor& x) {
  if (!x.defined()) return {nullptr, 0, 0, 1};
  if (x.dim() == 2) return {data_of<T>(x), x.stride(0), 0, 1};
  return {data_of<T>(x), x.stride(0), x.stride(1), x.size(1)};
}

void* stream_of(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

// body(a value of T) with T as the tensor's type, on its device.
template <typename Body>
void by_type(const at::Tensor& x, const Body& body) {
  const c10::cuda::CUDAGuard guard(x.device());
  if (x.scalar_type() == at::kFloat) {
    body(float{});
  } else {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "no CUDA kernels for ", x.scalar_type());
    body(Bfloat{});
  }
}

int64_t num_rows(const at::Tensor& x) { return x.numel() / x.size(-1); }

}  // namespace

void rms_norm_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight_D,
                  double eps) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    rms_norm<T>(stream_of(x), token_rows<T>(y), token_rows<const T>(x), data_of<T>(weight_D),
                static_cast<float>(eps), num_rows(x), x.size(-1));
  });
}

void rms_norm_backward_out(const at::Tensor& grad_x, const at::Tensor& grad_weight_D,
                           const at::Tensor& partial, const at::Tensor& grad_y, const at::Tensor& x,
                           const at::Tensor& weight_D, const at::Tensor& residual, double eps,
                           int64_t tokens_a_part) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    const RmsNormGradients<T> grads{token_rows<T>(grad_x), data_of<float>(grad_weight_D),
                                    data_of<float>(partial),
                                    tokens_a_part * (x.dim() == 3 ? x.size(1) : 1)};
    rms_norm_backward<T>(stream_of(x), grads, token_rows<const T>(grad_y), token_rows<const T>(x),
                         data_of<T>(weight_D), token_rows<const T>(residual),
                         static_cast<float>(eps), num_rows(x), x.size(-1));
  });
}

void rotate_out(const at::Tensor& y_TNH, const at::Tensor& x_TNH, const at::Tensor& cos_TH,
                const at::Tensor& sin_TH, bool back) {
  by_type(x_TNH, [&](auto type) {
    using T = decltype(type);
    rotate<T>(stream_of(x_TNH), token_rows<T>(y_TNH), token_rows<const T>(x_TNH),
              flat_rows<const T>(cos_TH), flat_rows<const T>(sin_TH), back, x_TNH.size(0),
              x_TNH.size(2) / 2);
  });
}

void swiglu_out(const at::Tensor& h_TF, const at::Tensor& gate_TF, const at::Tensor& up_TF) {
  by_type(gate_TF, [&](auto type) {
    using T = decltype(type);
    swiglu<T>(stream_of(gate_TF), flat_rows<T>(h_TF), flat_rows<const T>(gate_TF),
              flat_rows<const T>(up_TF), gate_TF.size(0), gate_TF.size(1));
  });
}

void swiglu_backward_out(const at::Tensor& grad_gate_TF, const at::Tensor& grad_up_TF,
                         const at::Tensor& h_TF, const at::Tensor& grad_h_TF,
                         const at::Tensor& gate_TF, const at::Tensor& up_TF) {
  by_type(gate_TF, [&](auto type) {
    using T = decltype(type);
    swiglu_backward<T>(stream_of(gate_TF), flat_rows<T>(grad_gate_TF), flat_rows<T>(grad_up_TF),
                       flat_rows<T>(h_TF), flat_rows<const T>(grad_h_TF),
                       flat_rows<const T>(gate_TF), flat_rows<const T>(up_TF), gate_TF.size(0),
                       gate_TF.size(1));
  });
}

void label_stats_out(const LabelStatsOut& stats, const at::Tensor& exps_CV,
                     const at::Tensor& logits_CV, const at::Tensor& labels_C) {
  const LabelStatsRows rows{
      data_of<float>(stats.logprob_C),     data_of<float>(stats.mean_logprob_C),
      data_of<float>(stats.entropy_C),     data_of<float>(stats.correct_C),
      data_of<float>(stats.sum_of_exps_C), data_of<float>(stats.mean_logit_C),
      data_of<float>(stats.log_sum_sq_C)};
  by_type(logits_CV, [&](auto type) {
    using T = decltype(type);
    label_stats<T>(stream_of(logits_CV), rows, flat_rows<float>(exps_CV),
                   flat_rows<const T>(logits_CV), labels_C.const_data_ptr<int64_t>(),
                   logits_CV.size(0), logits_CV.size(1));
  });
}

void logit_gradient_out(const at::Tensor& grad_CV, const at::Tensor& exps_CV,
                        const at::Tensor& sum_of_exps_C, const at::Tensor& labels_C,
                        const at::Tensor& grad_logprob_C, const at::Tensor& grad_mean_logprob_C) {
  by_type(grad_CV, [&](auto type) {
    using T = decltype(type);
    logit_gradient<T>(stream_of(grad_CV), flat_rows<T>(grad_CV), flat_rows<const float>(exps_CV),
                      data_of<float>(sum_of_exps_C), data_of<float>(grad_logprob_C),
                      data_of<float>(grad_mean_logprob_C), labels_C.const_data_ptr<int64_t>(),
                      exps_CV.size(0), exps_CV.size(1));
  });
}

void adamw_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
            const AdamWStep& step) {
  const c10::cuda::CUDAGuard guard(weights.device());
  adamw(stream_of(weights), weights.data_ptr<float>(), means.exp_avg.data_ptr<float>(),
        means.exp_avg_sq.data_ptr<float>(), gradients.const_data_ptr<float>(), step,
        weights.numel());
}

void adamw_bfloat_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
                   const AdamWStep& step, uint32_t draw) {
  const c10::cuda::CUDAGuard guard(weights.device());
  adamw_bfloat(stream_of(weights), weights.data_ptr<float>(), data_of<Bfloat>(means.exp_avg),
               data_of<Bfloat>(means.exp_avg_sq), gradients.const_data_ptr<float>(), step, draw,
               weights.numel());
}

void adamw_int8_(const at::Tensor& weights, const AdamWCodes& means, const at::Tensor& gradients,
                 const AdamWStep& step) {
  const c10::cuda::CUDAGuard guard(weights.device());
  const auto run = [](const at::Tensor& codes, const at::Tensor& scales, const DynamicMap& map) {
    return QuantizedRun{&map, codes.data_ptr<uint8_t>(), scales.data_ptr<float>()};
  };
  adamw_int8(stream_of(weights), weights.data_ptr<float>(),
             run(means.codes.exp_avg, means.scales.exp_avg, signed_dynamic_map()),
             run(means.codes.exp_avg_sq, means.scales.exp_avg_sq, unsigned_dynamic_map()),
             gradients.const_data_ptr<float>(), step, weights.numel());
}

void dequantize_out(const at::Tensor& out, const at::Tensor& bytes, Quantization kind,
                    const QuantizedLayout& layout, int64_t begin) {
  const uint8_t* const data = bytes.const_data_ptr<uint8_t>();
  const auto floats = [&](int64_t at) { return reinterpret_cast<const float*>(data + at); };
  by_type(out, [&](auto type) {
    using T = decltype(type);
    if (kind == Quantization::kInt8) {
      return dequantize_int8<T>(stream_of(out), data_of<T>(out),
                                reinterpret_cast<const int8_t*>(data), floats(layout.scales),
                                kInt8Step, begin, layout.width, out.numel());
    }
    const bool nested = kind == Quantization::kNf4Nested;
    const Nf4Parts parts{data, floats(layout.scales), data + layout.scales,
                         nested ? floats(layout.group_scales) : nullptr,
                         nested ? floats(layout.offset) : nullptr};
    dequantize_nf4<T>(stream_of(out), data_of<T>(out), parts, begin, out.numel());
  });
}

}  // namespace tessera::cuda
