// A matrix with an optional bias.
#pragma once

#include <ATen/ops/linear.h>

#include <string>
#include <vector>

#include "worker/model/layer.h"
#include "worker/model/projection.h"

namespace tessera {

struct Linear {
  Parameter weight;  // [out, in]
  Parameter bias;    // [out]; no name where there is none

  Linear(const std::string& name, int64_t in, int64_t out, bool has_bias)
      : weight{name + ".weight", {out, in}} {
    if (has_bias) bias = {name + ".bias", {out}};
  }
  at::Tensor operator()(const at::Tensor& x) const {
    return bias.name.empty() ? at::linear(x, weight.value)
                             : at::linear(x, weight.value, bias.value);
  }
  Projection::Matrix matrix() const { return {&weight, bias.name.empty() ? nullptr : &bias}; }
  void list(std::vector<Parameter*>& parameters) {
    parameters.push_back(&weight);
    if (!bias.name.empty()) parameters.push_back(&bias);
  }
};

}  // namespace tessera
