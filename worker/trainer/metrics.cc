#include "worker/trainer/metrics.h"

#include <ATen/ops/sum.h>

namespace tessera {

void LabelSums::add(const at::Tensor& loss_sum, const HeadOutput& head) {
  loss += loss_sum.item<double>();
  entropy += head.entropy_T.sum(at::kDouble).item<double>();
  correct += head.correct_T.sum(at::kDouble).item<double>();
}

}  // namespace tessera
