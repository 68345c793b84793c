#include "worker/parallel/offloaded_layer.h"

#include <c10/core/GradMode.h>

namespace tessera {

at::Tensor OffloadedLayer::forward(const at::Tensor& x, const Stream& stream) {
  if (!c10::GradMode::is_enabled()) return inner_->forward(x, stream);
  std::vector<at::Tensor> stays{stream.cos_TH, stream.sin_TH};
  for (const Parameter* parameter : parameters_) stays.push_back(parameter->value);
  const ActivationOffload::Block block(offload_, stays);
  return inner_->forward(x, stream);
}

}  // namespace tessera
