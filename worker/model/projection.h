// Products with float32 weights whose gradients go to their sinks, for layers with a backward of
// their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "worker/model/linear.h"

namespace tessera {

// The gradient of a parameter, summed over the parts of one backward in its sink. Of a frozen
// parameter there is none: what is added is dropped, and best not made.
class GradientSum {
 public:
  explicit GradientSum(const Parameter& parameter);

  // Whether there is a gradient to make.
  bool is_wanted() const { return sum_.defined(); }

  // Goes on as the sum of both, [rows of both, columns], where `next` lies behind this in memory,
  // or neither is wanted; else returns false.
  bool join(const GradientSum& next);

  // += scale * grad_CO.t() @ x_CI, of a matrix [O, I].
  void add_product(const at::Tensor& grad_CO, const at::Tensor& x_CI, double scale = 1);
  // += the sum of grad_CO over C, of a vector [O].
  void add_rows(const at::Tensor& grad_CO);
  // To be added to in place; undefined where it is not wanted.
  at::Tensor sum();
  // Nothing may be added any more, and the weight may go.
  void finish();

 private:
  std::vector<GradientSink*> sinks_;
  at::Tensor sum_;
  bool begun_ = false;  // whether sum_ holds anything
};

// y = x @ [w_0; w_1; ...].t() + [b_0, b_1, ...]: several matrices over one input, side by side in
// the output, each with its adapter, which must be plain. Those that lie side by side in memory,
// too, are multiplied as one.
class Projection {
 public:
  // The layers must stay where they are.
  explicit Projection(std::vector<const Linear*> linears) : linears_(std::move(linears)) {}

  int64_t width() const;  // of y

  // Writes y [C, width]; with `residual`, the product is added to it.
  void forward(const at::Tensor& y, const at::Tensor& x, const at::Tensor& residual = {}) const;
  // Writes y, or, with `add`, adds to it, a row of which depends on nothing but that row
  // (worker/kernels/row_product.h). Nothing is differentiated.
  void forward_by_row(const at::Tensor& y, const at::Tensor& x, bool add = false) const;

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
      const Linear* linear;  // the first, where there are several
      int64_t rows;
      at::Tensor value;  // undefined where it is made anew for each product
      GradientSum gradient;
    };
    struct Bias {
      int64_t begin, size;  // of y's columns
      GradientSum gradient;
    };
    struct Adapter {
      int64_t begin, size;  // of y's columns
      const LoraAdapter* lora;
      GradientSum a, b;
    };
    std::vector<Weight> weights_;
    std::vector<Bias> biases_;
    std::vector<Adapter> adapters_;
  };

 private:
  // multiply(columns of y, matrix, the first of these columns) for all that are multiplied as one.
  template <typename Multiply>
  void each_matrix(const at::Tensor& y, at::ScalarType dtype, const Multiply& multiply) const;

  std::vector<const Linear*> linears_;
};

}  // namespace tessera
