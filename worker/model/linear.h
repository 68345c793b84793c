// A matrix with an optional bias and an optional adapter.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/model/layer.h"
#include "worker/model/lora.h"

namespace tessera {

struct Linear {
  Parameter weight;                      // [out, in]
  Parameter bias;                        // [out]; no name where there is none
  std::unique_ptr<LoraAdapter> adapter;  // null: none
  bool is_router = false;                // chooses experts: never quantized

  Linear(const std::string& name, int64_t in, int64_t out, bool has_bias);

  // Of a stream with a cache, in float32 on a CPU, a row depends on nothing but that row.
  at::Tensor operator()(const at::Tensor& x_TI, const Stream& stream) const;

  // The matrix in `dtype`: the weight itself, or made from its bytes.
  at::Tensor dense(at::ScalarType dtype) const;
  bool has_bias() const { return !bias.name.empty(); }
  std::string name() const;  // without ".weight"
  // Appends its parameters in a fixed order.
  void list(std::vector<Parameter*>& parameters);

 private:
  at::Tensor product(const at::Tensor& x_TI, const Stream& stream) const;
  at::Tensor low_rank(const at::Tensor& x_TI, double dropout, const Stream& stream) const;
  at::Tensor with_magnitude(const at::Tensor& x_TI, const Stream& stream) const;
};

}  // namespace tessera
