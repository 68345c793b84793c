#include "worker/objectives/online.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include "worker/objectives/values.h"

namespace tessera {

BatchScores score_batch(const Models& models, const Batch& batch,
                        const OnlineMethod::Needs& needs) {
  const c10::AutoGradMode no_grad(false);
  const auto score = [&](DecoderModel& model, const ForwardOptions& forward) {
    return model.head(model.forward(batch, forward), batch, {.temperature = needs.temperature})
        .logprobs_T.index_select(0, batch.label_rows_L);
  };
  std::vector<at::Tensor> scores;
  if (needs.old_logprobs) scores.push_back(score(models.policy, {}));
  if (needs.reference_logprobs) {
    scores.push_back(models.reference != nullptr ? score(*models.reference, {})
                                                 : score(models.policy, {.adapters = false}));
  }
  BatchScores out;
  if (needs.values) {
    const at::Tensor values_V = predict_values(*models.value, batch, {});
    const int64_t labels = batch.label_rows_L.size(0);
    scores.push_back(values_V.narrow(0, 0, labels));
    out.end_values_S = values_V.narrow(0, labels, batch.num_sequences);
  }
  out.labels_KL = at::stack(scores);
  return out;
}

}  // namespace tessera
