// Gradient checkpointing: keep little of a layer in forward, and run it again in backward.
#pragma once

#include <memory>

#include "worker/model/layer.h"

namespace tessera {

// Keeps the layer's input, and by the policy what its heads attended to. The wrapped layer must be
// deterministic. The Stream given to forward must live until backward is done. A layer that can do
// so by itself does, at less cost (Layer::lean_forward).
class RecomputedLayer : public Layer {
 public:
  RecomputedLayer(std::unique_ptr<Layer> inner, RecomputePolicy policy)
      : inner_(std::move(inner)), policy_(policy) {}
  at::Tensor forward(const at::Tensor& x, const Stream& stream) override;
  std::vector<Parameter*> parameters() override { return inner_->parameters(); }
  std::vector<Linear*> linears() override { return inner_->linears(); }

 private:
  std::unique_ptr<Layer> inner_;
  RecomputePolicy policy_;
};

}  // namespace tessera
