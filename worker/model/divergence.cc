#include "worker/model/divergence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "worker/kernels/tensor_ops.h"
#include "worker/memory/ledger.h"
#include "worker/model/head_gradients.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What tensor_ops.h has of the same name, where there is no kernel of ours.
void divergence_by_aten(const at::Tensor& divergence_C, const at::Tensor& grad_CV,
                        const at::Tensor& student_CV, const at::Tensor& teacher_CV, double beta,
                        const at::Tensor& grad_divergence_C) {
  at::Tensor log_p = at::log_softmax(student_CV, 1, at::kFloat);
  at::Tensor log_q = at::log_softmax(teacher_CV, 1, at::kFloat);
  if (beta == 0) {
    at::Tensor ratio = log_q - log_p;
    const at::Tensor p = log_p.exp_(), q = log_q.exp_();
    divergence_C.copy_(ratio.mul_(q).sum(1));
    if (grad_CV.defined()) grad_CV.copy_(p.sub_(q).mul_(grad_divergence_C.unsqueeze(1)));
    return;
  }
  const double of_student = beta == 1 ? 1 : 1 - beta;
  at::Tensor ratio;  // log p less the log of what the student is compared with
  if (beta == 1) {
    ratio = log_p - log_q;
    divergence_C.zero_();
  } else {
    const at::Tensor log_m = at::logaddexp(log_p + std::log1p(-beta), log_q + std::log(beta));
    const at::Tensor of_teacher = log_q - log_m;
    divergence_C.copy_(of_teacher.mul_(log_q.exp_()).sum(1).mul_(beta));
    ratio = log_m.neg_().add_(log_p);
  }
  const at::Tensor p = log_p.exp_();
  const at::Tensor mean_C1 = (ratio * p).sum(1, /*keepdim=*/true);
  divergence_C.add_(mean_C1.squeeze(1), of_student);
  if (!grad_CV.defined()) return;
  grad_CV.copy_(ratio.sub_(mean_C1).mul_(p).mul_((grad_divergence_C * of_student).unsqueeze(1)));
}

// The logits of a chunk of tokens at a time, of both models.
class LogitPairs {
 public:
  LogitPairs(const LogitFactors& student, const LogitFactors& teacher, double beta,
             int64_t chunk_tokens)
      : student_(student),
        teacher_(teacher),
        beta_(beta),
        student_logits_(
            at::empty({chunk_tokens, student.weight_VD.size(0)}, student.weight_VD.options())),
        teacher_logits_(at::empty_like(student_logits_)) {}

  // Fills divergence_C. Returns the gradient of the student's logits [C, V], good until the next
  // call, from that of divergence_C; undefined where that is.
  at::Tensor run(const at::Tensor& student_hidden_CD, const at::Tensor& teacher_hidden_CD,
                 const at::Tensor& divergence_C, const at::Tensor& grad_divergence_C) {
    const int64_t count = divergence_C.size(0);
    at::Tensor student_CV = student_logits_.narrow(0, 0, count);
    at::Tensor teacher_CV = teacher_logits_.narrow(0, 0, count);
    at::mm_out(student_CV, student_hidden_CD, student_.weight_VD.t());
    at::mm_out(teacher_CV, teacher_hidden_CD, teacher_.weight_VD.t());
    const at::Tensor grad_CV = grad_divergence_C.defined() ? student_CV : at::Tensor();
    const auto divergence = has_cpu_kernels(student_CV) ? divergence_out : divergence_by_aten;
    divergence(divergence_C, grad_CV, student_CV, teacher_CV, beta_, grad_divergence_C);
    return grad_CV;
  }
  // Memory that nobody uses until the next run(): see LogitChunks.
  at::Tensor scratch() const { return teacher_logits_.flatten(); }

 private:
  const LogitFactors &student_, &teacher_;
  double beta_;
  at::Tensor student_logits_, teacher_logits_;
};

struct FusedDivergence : Function<FusedDivergence> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden_TD,
                            const at::Tensor& weight_VD, const LogitFactors& teacher,
                            const at::Tensor& rows_L, int64_t chunk_tokens,
                            const DivergenceRequest& request, int64_t sink_pointer,
                            bool is_last_use) {
    const OwnerScope scope(Owner::kHead);
    const LogitFactors student{hidden_TD, weight_VD};
    const int64_t num_labels = rows_L.size(0);
    const auto options = hidden_TD.options().dtype(at::kFloat);
    const at::Tensor divergence_L = at::empty({num_labels}, options);
    std::optional<HeadGradients> gradients;
    at::Tensor known_L;
    if (request.gradient_T.defined()) {
      gradients.emplace(hidden_TD, weight_VD, ctx->needs_input_grad(1),
                        reinterpret_cast<GradientSink*>(sink_pointer));
      known_L = request.gradient_T.index_select(0, rows_L);
    }
    {
      LogitPairs pairs(student, teacher, request.beta, std::min(chunk_tokens, num_labels));
      for (int64_t begin = 0; begin < num_labels; begin += chunk_tokens) {
        const int64_t count = std::min(chunk_tokens, num_labels - begin);
        const auto part = [&](const at::Tensor& x_L) {
          return x_L.defined() ? x_L.narrow(0, begin, count) : x_L;
        };
        const at::Tensor rows_C = part(rows_L), hidden_CD = hidden_TD.index_select(0, rows_C);
        const at::Tensor grad_CV = pairs.run(hidden_CD, teacher.hidden_TD.index_select(0, rows_C),
                                             part(divergence_L), part(known_L));
        if (gradients) gradients->add(rows_C, hidden_CD, grad_CV, pairs.scratch());
      }
    }
    if (gradients) {
      ctx->save_for_backward({rows_L, known_L, gradients->hidden(), gradients->finish_weight()});
    }
    ctx->saved_data["sink_at_end"] = is_last_use ? sink_pointer : 0;
    return at::zeros({hidden_TD.size(0)}, options).index_copy_(0, rows_L, divergence_L);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const OwnerScope scope(Owner::kHead);
    const auto saved = ctx->get_saved_variables();
    TORCH_CHECK(gradients_agree(grads[0].index_select(0, saved[0]), saved[1]),
                "an objective said another gradient than its loss has");
    auto* sink_at_end = reinterpret_cast<GradientSink*>(ctx->saved_data["sink_at_end"].toInt());
    if (sink_at_end != nullptr) sink_at_end->done();
    const at::Tensor none;
    return {saved[2], saved[3], none, none, none, none, none, none};
  }
};

}  // namespace

at::Tensor fused_divergence(const LogitFactors& student, const LogitFactors& teacher,
                            const at::Tensor& rows_L, int64_t chunk_tokens,
                            const DivergenceRequest& request, const HeadWeightSink& weight_sink) {
  TORCH_CHECK(student.weight_VD.size(0) == teacher.weight_VD.size(0) &&
                  student.weight_VD.scalar_type() == teacher.weight_VD.scalar_type(),
              "a student and a teacher of different vocabularies or dtypes");
  TORCH_CHECK(request.gradient_T.defined() || !c10::GradMode::is_enabled(),
              "the divergence is differentiable by a gradient that is known beforehand only");
  DivergenceRequest wanted = request;
  if (!c10::GradMode::is_enabled()) wanted.gradient_T.reset();
  const at::Tensor weight_VD =
      weight_sink.sink == nullptr ? student.weight_VD : student.weight_VD.detach();
  return FusedDivergence::apply(student.hidden_TD, weight_VD, teacher, rows_L, chunk_tokens, wanted,
                                reinterpret_cast<int64_t>(weight_sink.sink),
                                weight_sink.is_last_use);
}

}  // namespace tessera
