// A place for the gradient of one weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "worker/model/gradient_sink.h"

namespace tessera::testing {

class TestSink : public GradientSink {
 public:
  TestSink(at::Tensor sum, bool begun) : sum(std::move(sum)), begun(begun) {}
  Place place() override { return {sum, begun}; }
  at::ScalarType dtype() const override { return sum.scalar_type(); }
  void done() override { ++num_done; }

  at::Tensor sum;
  bool begun;
  int num_done = 0;
};

}  // namespace tessera::testing
