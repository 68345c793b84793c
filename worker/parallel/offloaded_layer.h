// A layer whose saved tensors are offloaded.
#pragma once

#include <memory>

#include "worker/memory/offload.h"
#include "worker/model/layer.h"

namespace tessera {

// Of a RecomputedLayer it is the input and what the policy keeps, else all that functions of the
// layer save. `offload` must outlive the graphs of forward.
class OffloadedLayer : public Layer {
 public:
  OffloadedLayer(std::unique_ptr<Layer> inner, ActivationOffload& offload)
      : inner_(std::move(inner)), parameters_(inner_->parameters()), offload_(offload) {}
  at::Tensor forward(const at::Tensor& x, const Stream& stream) override;
  std::vector<Parameter*> parameters() override { return parameters_; }
  std::vector<Linear*> linears() override { return inner_->linears(); }

 private:
  std::unique_ptr<Layer> inner_;
  std::vector<Parameter*> parameters_;
  ActivationOffload& offload_;
};

}  // namespace tessera
