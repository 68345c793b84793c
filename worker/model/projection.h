// Products with float32 weights whose gradients go to their sinks, for layers with a backward of
// their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/model/layer.h"

namespace tessera {

// The gradient of a parameter, summed over the parts of one backward in its sink. Of one that is
// not trained nothing is summed.
class GradientSum {
 public:
  explicit GradientSum(const Parameter& parameter);

  // Goes on as the sum of both, [rows of both, columns], where `next` lies behind this in memory;
  // else returns false.
  bool join(const GradientSum& next);

  // += grad_CO.t() @ x_CI, of a matrix [O, I].
  void add_product(const at::Tensor& grad_CO, const at::Tensor& x_CI);
  // += the sum of grad_CO over C, of a vector [O].
  void add_rows(const at::Tensor& grad_CO);
  // To be added to in place. Undefined where the parameter is not trained.
  at::Tensor sum();
  // Nothing may be added any more, and the weight may go.
  void finish();

 private:
  std::vector<GradientSink*> sinks_;
  at::Tensor sum_;
  bool begun_;  // whether sum_ holds anything
};

// y = x @ [w_0; w_1; ...].t() + [b_0, b_1, ...]: several matrices over one input, side by side in
// the output. Those that lie side by side in memory, too, are multiplied as one.
class Projection {
 public:
  struct Matrix {
    const Parameter* weight;  // [out, in]
    const Parameter* bias;    // [out], or null
  };
  explicit Projection(std::vector<Matrix> matrices) : matrices_(std::move(matrices)) {}

  int64_t width() const;  // of y

  // Writes y [C, width]; with `residual`, the product is added to it.
  void forward(const at::Tensor& y, const at::Tensor& x, const at::Tensor& residual = {}) const;

  // One backward, some tokens at a time.
  class Backward {
   public:
    explicit Backward(const Projection& projection);
    // Writes the gradient of x.
    void input_gradient(const at::Tensor& grad_x, const at::Tensor& grad_y) const;
    // Adds those of the weights and biases.
    void add_gradients(const at::Tensor& grad_y, const at::Tensor& x);
    // The weights may go.
    void finish();

   private:
    struct Weight {
      at::Tensor value;
      GradientSum gradient;
    };
    struct Bias {
      int64_t begin, size;  // of y's columns
      GradientSum gradient;
    };
    std::vector<Weight> weights_;
    std::vector<Bias> biases_;
  };

 private:
  std::vector<Matrix> matrices_;
};

}  // namespace tessera
