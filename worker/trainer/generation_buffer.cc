#include "worker/trainer/generation_buffer.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "worker/kernels/stand_in.h"

namespace tessera {

GenerationBuffer::GenerationBuffer(const OnlineMethod::Needs& needs, int64_t num_labels,
                                   int64_t num_rollouts, at::Device device)
    : needs_(needs),
      num_labels_(num_labels),
      num_rollouts_(needs.values ? num_rollouts : 0),
      all_(at::zeros({needs.count() * num_labels + num_rollouts_},
                     at::TensorOptions(device).dtype(at::kFloat))) {}

void GenerationBuffer::put(const BatchScores& scores, const Batch& batch,
                           const std::vector<int64_t>& places_S) {
  const int64_t of_labels = needs_.count() * num_labels_;
  all_.narrow(0, 0, of_labels)
      .view({needs_.count(), num_labels_})
      .index_copy_(1, batch.label_numbers_L.to(all_.device()), scores.labels_KL);
  if (!needs_.values) return;
  all_.narrow(0, of_labels, num_rollouts_)
      .index_copy_(0, at::tensor(places_S, at::kLong).to(all_.device()), scores.end_values_S);
}

GenerationScores GenerationBuffer::gather(Collectives& world) const {
  at::Tensor all = all_;
  world.all_reduce_sum(all);
  const std::vector<double> values = host_values(all.to(at::kDouble));
  auto next = values.begin();
  const auto take = [&](bool is_there, int64_t count, std::vector<float>& to) {
    if (!is_there) return;
    to.assign(next, next + count);
    next += count;
  };
  GenerationScores scores;
  take(needs_.old_logprobs, num_labels_, scores.old_logprobs);
  take(needs_.reference_logprobs, num_labels_, scores.reference_logprobs);
  take(needs_.values, num_labels_, scores.values);
  take(needs_.values, num_rollouts_, scores.end_values);
  return scores;
}

}  // namespace tessera
