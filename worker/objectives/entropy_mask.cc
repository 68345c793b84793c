#include "worker/objectives/entropy_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "worker/model/context.h"

namespace tessera {
namespace {

// Of all ranks, 1 higher, among zeros that are none: [places]. Sizes follow from what every rank
// knows.
at::Tensor gather(const at::Tensor& entropy_L, const Batch& batch, Collectives& data) {
  const auto& part = batch.documents.part;
  const int64_t most = std::max<int64_t>(1, batch.completions->most_labels);
  at::Tensor of_stream = at::zeros({most * (part ? part->size : 1)}, entropy_L.options());
  of_stream.narrow(0, most * (part ? part->rank : 0), entropy_L.size(0)).copy_(entropy_L + 1);
  of_stream = sum_over_context(of_stream, batch.documents);
  if (data.size() == 1) return of_stream;
  at::Tensor of_all = at::empty({data.size() * of_stream.size(0)}, of_stream.options());
  data.all_gather(of_all, of_stream)->wait();
  return of_all;
}

}  // namespace

at::Tensor high_entropy_mask(const at::Tensor& entropy_L, double share, int64_t num_labels,
                             const Batch& batch, Collectives& data) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor all = gather(entropy_L, batch, data);
  if (num_labels == 0) return at::zeros_like(entropy_L);
  const at::Tensor falling = std::get<0>(at::sort(all, /*dim=*/0, /*descending=*/true)) - 1;
  const double place = share * static_cast<double>(num_labels - 1);
  const auto below = static_cast<int64_t>(std::floor(place));
  const at::Tensor higher = falling.select(0, below),
                   lower = falling.select(0, std::min(below + 1, num_labels - 1));
  const at::Tensor threshold = lower + (higher - lower) * (1 - (place - std::floor(place)));
  return (entropy_L >= threshold).to(at::kFloat);
}

}  // namespace tessera
