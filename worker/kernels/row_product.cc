#include "worker/kernels/row_product.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>

#include <algorithm>
#include <utility>

#include "worker/kernels/amx_products.h"
#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

// Rows that a thread takes at a time, where there are enough for all.
constexpr int64_t kPartRows = 64;
// What threads write lies in cache lines of their own.
constexpr int64_t kColumnsOfLine = 16;
// Products that are worth a thread.
constexpr int64_t kGrainProducts = 1 << 16;

thread_local bool has_many_rows = false;

Rows<const float> rows_of(const at::Tensor& x) { return {x.const_data_ptr<float>(), x.stride(0)}; }

// The output as a grid, of which each part is one thread's.
struct Grid {
  int64_t rows, columns;            // of y
  int64_t part_rows, part_columns;  // of a part, but for the last ones

  Grid(int64_t rows, int64_t columns, int64_t width)
      : rows(rows), columns(columns), part_rows(rows), part_columns(columns) {
    const int64_t threads = at::get_num_threads();
    if (threads == 1 || rows * columns * width < 2 * kGrainProducts) return;
    part_rows = std::min(rows, kPartRows);
    if (row_parts() >= threads) return;
    part_columns = at::ceil_div(at::ceil_div(columns, threads), kColumnsOfLine) * kColumnsOfLine;
  }

  int64_t row_parts() const { return at::ceil_div(rows, part_rows); }
  int64_t column_parts() const { return at::ceil_div(columns, part_columns); }
  int64_t size() const { return row_parts() * column_parts(); }
};

}  // namespace

ManyRowsScope::ManyRowsScope(bool many) : previous_(std::exchange(has_many_rows, many)) {}

ManyRowsScope::~ManyRowsScope() { has_many_rows = previous_; }

bool has_row_products(const at::Tensor& x) { return on_cpu(x) && x.scalar_type() == at::kFloat; }

void row_product_out(const at::Tensor& y_TO, const at::Tensor& x_TI, const at::Tensor& weight_OI,
                     bool add) {
  TORCH_CHECK(y_TO.dim() == 2 && weight_OI.dim() == 2 && y_TO.size(1) == weight_OI.size(0),
              "shapes of a product");
  row_product_into(y_TO, 0, x_TI, weight_OI, weight_OI.size(0), add);
}

void row_product_into(const at::Tensor& y_TO, int64_t first_column, const at::Tensor& x_TI,
                      const at::Tensor& weight_OI, int64_t columns, bool add) {
  for (const at::Tensor* x : {&y_TO, &x_TI, &weight_OI}) {
    TORCH_CHECK(has_row_products(*x) && x->dim() == 2 && x->stride(1) == 1,
                "row products take float32 matrices with rows of contiguous values");
  }
  const int64_t rows = x_TI.size(0), width = x_TI.size(1);
  TORCH_CHECK(
      weight_OI.size(1) == width && y_TO.size(0) == rows && y_TO.size(1) >= first_column + columns,
      "shapes of a product");
  if (rows == 0 || columns == 0) return;
  if (y_TO.is_meta()) {
    const auto products = static_cast<double>(rows * columns) * static_cast<double>(width);
    const int64_t touched = rows * columns + rows * width + columns * width;
    return count_kernel(2 * products, touched * static_cast<int64_t>(sizeof(float)));
  }
  const Rows<float> y{y_TO.mutable_data_ptr<float>() + first_column, y_TO.stride(0)};
  const Rows<const float> x = rows_of(x_TI), w = rows_of(weight_OI);
  const RowProductKernel by_amx = has_many_rows ? amx_products() : nullptr;
  const RowProductKernel multiply = by_amx != nullptr ? by_amx : cpu_kernels().row_products;
  const Grid grid(rows, columns, width);
  at::parallel_for(0, grid.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t row = part / grid.column_parts() * grid.part_rows;
      const int64_t column = part % grid.column_parts() * grid.part_columns;
      multiply({y[row] + column, y.stride}, {x[row], x.stride}, {w[column], w.stride}, add,
               std::min(grid.part_rows, rows - row), std::min(grid.part_columns, columns - column),
               width);
    }
  });
}

}  // namespace tessera
