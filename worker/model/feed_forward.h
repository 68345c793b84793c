// The half of a block that works on each token alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/model/config.h"
#include "worker/model/fused_mlp.h"
#include "worker/model/layer.h"
#include "worker/model/linear.h"

namespace tessera {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  virtual at::Tensor forward(const at::Tensor& x_TD, const Stream& stream) = 0;
  // Its matrices in a fixed order: all parameters it has.
  virtual std::vector<Linear*> linears() = 0;
  // Appends its parameters in that order.
  void list(std::vector<Parameter*>& parameters) {
    for (Linear* linear : linears()) linear->list(parameters);
  }
  // What fused_block takes in its place, if it is that.
  virtual std::optional<GatedMlp> gated() const { return {}; }
};

// down(silu(gate(x)) * up(x)), named `block`.mlp.
std::unique_ptr<FeedForward> make_mlp(const ModelConfig& config, const std::string& block);
// A mixture of experts, named `block`.NAME; see experts.cc.
std::unique_ptr<FeedForward> make_experts(const ModelConfig& config, const std::string& block);

}  // namespace tessera
