// Matrix products of which a row does not depend on the others.
//
// BLAS sums in another order for a few rows than for many, and packs the matrix first, which takes
// longer than a few rows do. Here each element is a sum in one order, of a row of x and a row of
// the matrix where they lie: the same bits whatever else is in the call, on any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

// Whether row_product_out takes such an x: float32 on a CPU, or standing for that (stand_in.h).
bool has_row_products(const at::Tensor& x);

// While one lives, its thread's products are by the processor's matrix unit where it has one (AMX).
// That is faster of 16 rows and more, and slower of fewer. The bits are others, but as exact: what
// is to be the same has to be made in one way.
class ManyRowsScope {
 public:
  explicit ManyRowsScope(bool many);
  ~ManyRowsScope();
  ManyRowsScope(const ManyRowsScope&) = delete;
  ManyRowsScope& operator=(const ManyRowsScope&) = delete;

 private:
  bool previous_;
};

// y_TO = x_TI @ weight_OI.t(), or += that with `add`. All float32, with rows of contiguous values;
// y is apart from the others. Without data nothing is computed; nothing is ever allocated.
void row_product_out(const at::Tensor& y_TO, const at::Tensor& x_TI, const at::Tensor& weight_OI,
                     bool add = false);

// The same with the matrix of num_rows rows that begins where `first`, a contiguous one, does, into
// as many of y's columns from `column` on: without views of either, which take longer to make than
// the product of one row takes beside what it must read.
void row_product_into(const at::Tensor& y, int64_t column, const at::Tensor& x_TI,
                      const at::Tensor& first, int64_t num_rows, bool add);

}  // namespace tessera
