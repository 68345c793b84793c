// Where a layer that makes gradients of weights by itself, past autograd, puts them.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

// Of one parameter. Not thread safe.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  struct Place {
    at::Tensor sum;  // in the parameter's shape
    bool begun;      // whether `sum` holds something to add to; else it is to be written whole
  };
  // May be called several times in a backward, or the forward before it: of a weight with several
  // uses each adds to what is there. Who calls it fills what is not begun.
  virtual Place place() = 0;
  // Of place().sum. Asking makes no memory, as place() may.
  virtual at::ScalarType dtype() const { return at::kFloat; }
  // The gradient of this backward is in its place: the weight may go. Called once a backward, by
  // the last use.
  virtual void done() = 0;
};

}  // namespace tessera
