// Gradient checkpointing: keep a layer's input only, and run the layer again in backward.
#pragma once

#include <memory>

#include "worker/model/layer.h"

namespace tessera {

// The wrapped layer must be deterministic. The Stream given to forward must live until backward is
// done. A layer that can do so by itself does, at less cost (Layer::lean_forward).
class RecomputedLayer : public Layer {
 public:
  explicit RecomputedLayer(std::unique_ptr<Layer> inner) : inner_(std::move(inner)) {}
  at::Tensor forward(const at::Tensor& x, const Stream& stream) override;
  std::vector<Parameter*> parameters() override { return inner_->parameters(); }

 private:
  std::unique_ptr<Layer> inner_;
};

}  // namespace tessera
