// Generalised knowledge distillation (arXiv 2306.13649) on given documents: at every label the
// student learns the teacher's distribution. Source: trl/experimental/gkd/gkd_trainer.py.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "worker/objectives/objective.h"

namespace tessera {
namespace {

class Gkd : public Objective {
 public:
  explicit Gkd(const v1::JobSpec& spec)
      : Objective(spec, Mean::kLabels), beta_(spec.method().gkd().beta()) {}

  ObjectiveOutput run(const Models& models, const Batch& batch,
                      const StepShare& share) const override {
    DecoderModel& student = models.policy;
    const auto normalizer = static_cast<double>(std::max<int64_t>(1, share.num_labels));
    // Before the student's forward, which keeps what backward needs.
    const at::Tensor teacher_TD = run_teacher(*models.teacher, batch);
    DivergenceRequest request{.beta = beta_};
    if (c10::GradMode::is_enabled()) {
      request.gradient_T = at::full(batch.labels_T.sizes(), 1 / normalizer,
                                    batch.labels_T.options().dtype(at::kFloat));
    }
    const at::Tensor sum = student
                               .divergence(student.forward(batch, share.forward), *models.teacher,
                                           teacher_TD, batch, request)
                               .sum();
    MetricSums measured;
    measured.add(kLossMetric, sum, static_cast<double>(batch.num_labels));
    return {sum / normalizer, measured.in_order(metrics()), student.aux_loss()};
  }

 private:
  static at::Tensor run_teacher(DecoderModel& teacher, const Batch& batch) {
    const c10::AutoGradMode no_grad(false);
    return teacher.forward(batch);
  }

  const double beta_;
};

}  // namespace

std::unique_ptr<Objective> make_gkd(const v1::JobSpec& spec) { return std::make_unique<Gkd>(spec); }

}  // namespace tessera
