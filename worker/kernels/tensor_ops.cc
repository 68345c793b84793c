#include "worker/kernels/tensor_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "worker/kernels/cuda_ops.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/trace_scope.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

// Values that are worth a thread.
constexpr int64_t kGrainValues = 1 << 15;
// Rows whose weight gradients one thread adds up. Fixed, so that sums are the same for any number
// of threads.
constexpr int64_t kReductionRows = 64;

template <typename T>
T* data_of(const at::Tensor& x) {
  // Also of const tensors: what they hold is written.
  return static_cast<T*>(x.defined() ? x.data_ptr() : nullptr);
}

// [T, D], or [T, N, D] by way of its N rows at each token.
template <typename T>
Rows<T> rows_of(const at::Tensor& x, int64_t token = 0) {
  if (!x.defined()) return {nullptr, 0};
  T* data = data_of<T>(x) + token * x.stride(0);
  return x.dim() == 3 ? Rows<T>{data, x.stride(1)} : Rows<T>{data, x.stride(0)};
}

void check_rows(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors) {
    if (!x.defined()) continue;
    TORCH_CHECK(x.stride(-1) == 1, "kernels take rows of contiguous values");
  }
}

// body(values of T) with T as the tensor's type.
template <typename Body>
void by_type(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) {
    body(float{});
  } else {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "no CPU kernels for ", x.scalar_type());
    body(Bfloat{});
  }
}

template <typename Body>
void spread(int64_t count, int64_t values_each, const Body& body) {
  at::parallel_for(0, count, std::max<int64_t>(1, kGrainValues / std::max<int64_t>(1, values_each)),
                   body);
}

// body(first token, number of rows) of [T, D] at once, or of [T, N, D] a token at a time.
template <typename Body>
void each_token(const at::Tensor& x, int64_t begin, int64_t end, const Body& body) {
  if (x.dim() == 2) return body(begin, end - begin);
  for (int64_t token = begin; token < end; ++token) body(token, x.size(1));
}

}  // namespace

bool has_cpu_kernels(const at::Tensor& x) {
  return on_cpu(x) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

void rms_norm_out(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight_D,
                  double eps) {
  const TraceScope trace("rms_norm");
  check_rows({y, x, weight_D});
  if (x.numel() == 0) return;
  if (x.is_meta()) return count_kernel(0, {y, x, weight_D});
  if (x.is_cuda()) return cuda::rms_norm_out(y, x, weight_D, eps);
  by_type(x, [&](auto type) {
    using T = decltype(type);
    const auto norm = cpu_kernels().of<T>().rms_norm;
    spread(x.size(0), x.numel() / x.size(0), [&](int64_t begin, int64_t end) {
      each_token(x, begin, end, [&](int64_t token, int64_t num_rows) {
        norm(rows_of<T>(y, token), rows_of<const T>(x, token), data_of<T>(weight_D),
             static_cast<float>(eps), num_rows, x.size(-1));
      });
    });
  });
}

void rms_norm_backward_out(const at::Tensor& grad_x, const at::Tensor& grad_weight_D,
                           const at::Tensor& grad_y, const at::Tensor& x,
                           const at::Tensor& weight_D, const at::Tensor& residual, double eps) {
  const TraceScope trace("rms_norm backward");
  check_rows({grad_x, grad_weight_D, grad_y, x, weight_D, residual});
  if (x.numel() == 0) return;
  const int64_t tokens = x.size(0), width = x.size(-1);
  const int64_t blocks = at::ceil_div(tokens, kReductionRows);
  const bool wants_weight = grad_weight_D.defined();
  at::Tensor partial;
  if (wants_weight) partial = at::empty({blocks, width}, grad_weight_D.options());
  if (x.is_meta()) return count_kernel(0, {grad_x, grad_y, x, weight_D, residual, partial});
  if (x.is_cuda())
    return cuda::rms_norm_backward_out(grad_x, grad_weight_D, partial, grad_y, x, weight_D,
                                       residual, eps, kReductionRows);
  auto* partials = data_of<float>(partial);
  by_type(x, [&](auto type) {
    using T = decltype(type);
    const auto backward = cpu_kernels().of<T>().rms_norm_backward;
    spread(blocks, kReductionRows * x.numel() / tokens, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        float* sums = wants_weight ? partials + block * width : nullptr;
        if (wants_weight) std::fill_n(sums, width, 0.0f);
        const int64_t first = block * kReductionRows;
        each_token(x, first, std::min(tokens, first + kReductionRows),
                   [&](int64_t token, int64_t num_rows) {
                     backward(rows_of<T>(grad_x, token), sums, rows_of<const T>(grad_y, token),
                              rows_of<const T>(x, token), data_of<T>(weight_D),
                              rows_of<const T>(residual, token), static_cast<float>(eps), num_rows,
                              width);
                   });
      }
    });
  });
  if (!wants_weight) return;
  auto* total = data_of<float>(grad_weight_D);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < width; ++i) total[i] += partials[block * width + i];
  }
}

void rotate_out(const at::Tensor& y_TNH, const at::Tensor& x_TNH, const at::Tensor& cos_TH,
                const at::Tensor& sin_TH, bool back) {
  const TraceScope trace("rotate");
  check_rows({y_TNH, x_TNH, cos_TH, sin_TH});
  if (x_TNH.is_meta()) return count_kernel(0, {y_TNH, x_TNH, cos_TH, sin_TH});
  if (x_TNH.is_cuda()) return cuda::rotate_out(y_TNH, x_TNH, cos_TH, sin_TH, back);
  by_type(x_TNH, [&](auto type) {
    using T = decltype(type);
    const auto rotate = cpu_kernels().of<T>().rotate;
    const int64_t num_heads = x_TNH.size(1), half = x_TNH.size(2) / 2;
    spread(x_TNH.size(0), num_heads * half * 2, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        rotate(rows_of<T>(y_TNH, token), rows_of<const T>(x_TNH, token),
               data_of<T>(cos_TH) + token * cos_TH.stride(0),
               data_of<T>(sin_TH) + token * sin_TH.stride(0), back, num_heads, half);
      }
    });
  });
}

void swiglu_out(const at::Tensor& h_TF, const at::Tensor& gate_TF, const at::Tensor& up_TF) {
  const TraceScope trace("swiglu");
  check_rows({h_TF, gate_TF, up_TF});
  if (gate_TF.is_meta()) return count_kernel(0, {h_TF, gate_TF, up_TF});
  if (gate_TF.is_cuda()) return cuda::swiglu_out(h_TF, gate_TF, up_TF);
  by_type(gate_TF, [&](auto type) {
    using T = decltype(type);
    const auto swiglu = cpu_kernels().of<T>().swiglu;
    const int64_t width = gate_TF.size(1);
    spread(gate_TF.size(0), width, [&](int64_t begin, int64_t end) {
      swiglu(rows_of<T>(h_TF, begin), rows_of<const T>(gate_TF, begin),
             rows_of<const T>(up_TF, begin), end - begin, width);
    });
  });
}

void swiglu_backward_out(const at::Tensor& grad_gate_TF, const at::Tensor& grad_up_TF,
                         const at::Tensor& h_TF, const at::Tensor& grad_h_TF,
                         const at::Tensor& gate_TF, const at::Tensor& up_TF) {
  const TraceScope trace("swiglu backward");
  check_rows({grad_gate_TF, grad_up_TF, h_TF, grad_h_TF, gate_TF, up_TF});
  if (gate_TF.is_meta())
    return count_kernel(0, {grad_gate_TF, grad_up_TF, h_TF, grad_h_TF, gate_TF, up_TF});
  if (gate_TF.is_cuda())
    return cuda::swiglu_backward_out(grad_gate_TF, grad_up_TF, h_TF, grad_h_TF, gate_TF, up_TF);
  by_type(gate_TF, [&](auto type) {
    using T = decltype(type);
    const auto backward = cpu_kernels().of<T>().swiglu_backward;
    const int64_t width = gate_TF.size(1);
    spread(gate_TF.size(0), width, [&](int64_t begin, int64_t end) {
      backward(rows_of<T>(grad_gate_TF, begin), rows_of<T>(grad_up_TF, begin),
               rows_of<T>(h_TF, begin), rows_of<const T>(grad_h_TF, begin),
               rows_of<const T>(gate_TF, begin), rows_of<const T>(up_TF, begin), end - begin,
               width);
    });
  });
}

void label_stats_out(const LabelStatsOut& stats, const at::Tensor& exps_CV,
                     const at::Tensor& logits_CV, const at::Tensor& labels_C) {
  const TraceScope trace("label_stats");
  check_rows({exps_CV, logits_CV, labels_C});
  if (logits_CV.is_meta()) return count_kernel(0, {exps_CV, logits_CV, labels_C});
  if (logits_CV.is_cuda()) return cuda::label_stats_out(stats, exps_CV, logits_CV, labels_C);
  const int64_t width = logits_CV.size(1);
  const int64_t* labels = labels_C.const_data_ptr<int64_t>();
  auto *logprob = data_of<float>(stats.logprob_C), *entropy = data_of<float>(stats.entropy_C),
       *mean = data_of<float>(stats.mean_logprob_C), *correct = data_of<float>(stats.correct_C),
       *sum = data_of<float>(stats.sum_of_exps_C), *mean_logit = data_of<float>(stats.mean_logit_C),
       *log_sum_sq = data_of<float>(stats.log_sum_sq_C);
  by_type(logits_CV, [&](auto type) {
    using T = decltype(type);
    const auto label_stats = cpu_kernels().of<T>().label_stats;
    const auto exps = rows_of<float>(exps_CV);
    const auto logits = rows_of<const T>(logits_CV);
    spread(logits_CV.size(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const LabelStats row =
            label_stats(exps[i], logits[i], labels[i], width, log_sum_sq != nullptr);
        logprob[i] = row.logprob;
        mean[i] = row.mean_logprob;
        entropy[i] = row.entropy;
        correct[i] = row.correct;
        sum[i] = row.sum_of_exps;
        if (mean_logit != nullptr) mean_logit[i] = row.mean_logit;
        if (log_sum_sq != nullptr) log_sum_sq[i] = row.log_sum_sq;
      }
    });
  });
}

void logit_gradient_out(const at::Tensor& grad_CV, const at::Tensor& exps_CV,
                        const at::Tensor& sum_of_exps_C, const at::Tensor& labels_C,
                        const at::Tensor& grad_logprob_C, const at::Tensor& grad_mean_logprob_C) {
  const TraceScope trace("logit_gradient");
  check_rows({grad_CV, exps_CV, sum_of_exps_C, labels_C, grad_logprob_C, grad_mean_logprob_C});
  if (grad_CV.is_meta()) return count_kernel(0, {grad_CV, exps_CV, sum_of_exps_C, labels_C});
  if (grad_CV.is_cuda())
    return cuda::logit_gradient_out(grad_CV, exps_CV, sum_of_exps_C, labels_C, grad_logprob_C,
                                    grad_mean_logprob_C);
  const int64_t width = exps_CV.size(1);
  const int64_t* labels = labels_C.const_data_ptr<int64_t>();
  const auto *sum = data_of<float>(sum_of_exps_C), *of_label = data_of<float>(grad_logprob_C),
             *of_mean = data_of<float>(grad_mean_logprob_C);
  by_type(grad_CV, [&](auto type) {
    using T = decltype(type);
    const auto logit_gradient = cpu_kernels().of<T>().logit_gradient;
    const auto grad = rows_of<T>(grad_CV);
    const auto exps = rows_of<const float>(exps_CV);
    spread(exps_CV.size(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        logit_gradient(grad[i], exps[i], sum[i], of_label[i],
                       of_mean == nullptr ? 0.0f : of_mean[i], labels[i], width);
      }
    });
  });
}

void divergence_out(const at::Tensor& divergence_C, const at::Tensor& grad_CV,
                    const at::Tensor& student_CV, const at::Tensor& teacher_CV, double beta,
                    const at::Tensor& grad_divergence_C) {
  const TraceScope trace("divergence");
  check_rows({divergence_C, grad_CV, student_CV, teacher_CV, grad_divergence_C});
  if (student_CV.is_meta()) {
    // Twice over the rows: for the sums, and for what is made with them.
    count_kernel(0, {student_CV, teacher_CV, student_CV, teacher_CV, grad_CV});
    return;
  }
  const int64_t width = student_CV.size(1);
  const bool wants_gradient = grad_CV.defined();
  auto* values = data_of<float>(divergence_C);
  const auto* of_divergence = data_of<float>(grad_divergence_C);
  by_type(student_CV, [&](auto type) {
    using T = decltype(type);
    const auto divergence = cpu_kernels().of<T>().divergence;
    const auto grad = rows_of<T>(grad_CV);
    const auto student = rows_of<const T>(student_CV), teacher = rows_of<const T>(teacher_CV);
    spread(student_CV.size(0), 4 * width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        values[i] = divergence(wants_gradient ? grad[i] : nullptr, student[i], teacher[i], beta,
                               wants_gradient ? of_divergence[i] : 0.0f, width);
      }
    });
  });
}

}  // namespace tessera
