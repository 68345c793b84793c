// Row products against the definition in double precision, and to the bit against themselves in
// other company.
#include "worker/kernels/row_product.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/worker/kernels/kernel_test.h"
#include "worker/kernels/amx_products.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

using testing::Matrix;

// Null where this machine cannot run it.
RowProductKernel products_of(CpuSet set) {
  const CpuKernels* kernels = cpu_kernels(set);
  return kernels == nullptr ? nullptr : kernels->row_products;
}

struct Kind {
  const char* name;
  RowProductKernel products;
};
const Kind kKinds[] = {{"baseline", products_of(CpuSet::kBaseline)},
                       {"avx2", products_of(CpuSet::kAvx2)},
                       {"avx512", products_of(CpuSet::kAvx512)},
                       {"amx", amx_products()}};

struct ProductCase {
  Kind kind;
  int64_t num_rows, num_columns, width;
};

std::vector<ProductCase> product_cases() {
  std::vector<ProductCase> list;
  for (const Kind& kind : kKinds) {
    // Parts of a vector, of a tile and of a span, and more than one.
    for (const int64_t width : {1, 3, 8, 16, 37, 1024, 2100}) {
      for (const int64_t num_columns : {1, 4, 11, 35}) {
        for (const int64_t num_rows : {1, 2, 3, 5, 6, 7, 13, 20, 40, 65})
          list.push_back({kind, num_rows, num_columns, width});
      }
    }
  }
  return list;
}

class RowProducts : public ::testing::TestWithParam<ProductCase> {
 protected:
  void SetUp() override {
    if (GetParam().kind.products == nullptr) GTEST_SKIP() << "this machine cannot run it";
  }
  Matrix<float> product(const Matrix<float>& x, const Matrix<float>& w, bool add) const {
    Matrix<float> y(x.num_rows, w.num_rows, 3);
    multiply_(y.rows(), x.rows(), w.rows(), add, x.num_rows, w.num_rows, x.width);
    return y;
  }

  const RowProductKernel multiply_ = GetParam().kind.products;
  const Matrix<float> x_{GetParam().num_rows, GetParam().width, 1};
  const Matrix<float> w_{GetParam().num_columns, GetParam().width, 2};
};

TEST_P(RowProducts, AreSumsOfProducts) {
  for (const bool add : {false, true}) {
    const Matrix<float> before(x_.num_rows, w_.num_rows, 3);
    const Matrix<float> y = product(x_, w_, add);
    ASSERT_TRUE(y.gaps_are_whole());
    for (int64_t m = 0; m < y.num_rows; ++m) {
      for (int64_t o = 0; o < y.width; ++o) {
        double want = add ? before.at(m, o) : 0, size = 1;
        for (int64_t i = 0; i < x_.width; ++i) {
          want += x_.at(m, i) * w_.at(o, i);
          size += std::abs(x_.at(m, i) * w_.at(o, i));
        }
        ASSERT_NEAR(y.at(m, o), want, 3e-7 * size) << m << ", " << o;
      }
    }
  }
}

TEST_P(RowProducts, DoNotDependOnOtherRowsAndColumns) {
  const Matrix<float> together = product(x_, w_, /*add=*/false);
  for (const int64_t m : {int64_t{0}, x_.num_rows / 2, x_.num_rows - 1}) {
    for (const int64_t o : {int64_t{0}, w_.num_rows / 2, w_.num_rows - 1}) {
      float alone = 0;
      multiply_({&alone, 1}, {x_.rows()[m], 0}, {w_.rows()[o], 0}, /*add=*/false, 1, 1, x_.width);
      ASSERT_EQ(alone, static_cast<float>(together.at(m, o))) << m << ", " << o;
    }
  }
}

std::string product_name(const ::testing::TestParamInfo<ProductCase>& info) {
  const ProductCase& c = info.param;
  return std::string(c.kind.name) + "_" + std::to_string(c.num_rows) + "x" +
         std::to_string(c.num_columns) + "x" + std::to_string(c.width);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowProducts, ::testing::ValuesIn(product_cases()), product_name);

TEST(RowProductTensors, AreThoseOfBlasOnAnyNumberOfThreads) {
  for (const auto& [rows, columns] : {std::pair(1, 300), std::pair(7, 1000), std::pair(500, 70)}) {
    const at::Tensor x = at::randn({rows, 700}), w = at::randn({columns, 700});
    const at::Tensor wide = at::full({rows, columns + 40}, 5.0);
    const at::Tensor y = wide.narrow(1, 20, columns);
    at::set_num_threads(1);
    row_product_out(y, x, w);
    EXPECT_TRUE(y.allclose(at::mm(x, w.t()), 1e-5, 1e-4));
    EXPECT_TRUE(wide.narrow(1, 0, 20).eq(5.0).all().item<bool>());
    EXPECT_TRUE(wide.narrow(1, 20 + columns, 20).eq(5.0).all().item<bool>());
    at::set_num_threads(3);
    const at::Tensor again = at::empty({rows, columns});
    row_product_out(again, x, w);
    EXPECT_TRUE(at::equal(again, y));
    row_product_out(again, x, w, /*add=*/true);
    EXPECT_TRUE(again.allclose(y.mul(2)));
  }
}

TEST(RowProductTensors, TakeMatricesThatLieSideBySide) {
  const at::Tensor x = at::randn({5, 70}), w = at::randn({90, 70});
  for (const bool many : {false, true}) {
    const ManyRowsScope scope(many);
    const at::Tensor y = at::full({5, 100}, 7.0), want = at::empty({5, 60});
    row_product_out(want, x, w.narrow(0, 30, 60));
    row_product_into(y, 20, x, w.narrow(0, 30, 25), 60, /*add=*/false);
    EXPECT_TRUE(at::equal(y.narrow(1, 20, 60), want));
    EXPECT_TRUE(y.narrow(1, 0, 20).eq(7.0).all().item<bool>());
    EXPECT_TRUE(y.narrow(1, 80, 20).eq(7.0).all().item<bool>());
    EXPECT_ANY_THROW(row_product_into(y, 41, x, w, 60, /*add=*/false));
  }
}

TEST(RowProductTensors, ManyRowsAreAsExactOnAnyNumberOfThreads) {
  const at::Tensor x = at::randn({130, 700}), w = at::randn({300, 700});
  const at::Tensor y = at::empty({130, 300}), again = at::empty({130, 300});
  const ManyRowsScope scope(true);
  at::set_num_threads(1);
  row_product_out(y, x, w);
  EXPECT_TRUE(y.allclose(at::mm(x, w.t()), 1e-5, 1e-4));
  at::set_num_threads(3);
  row_product_out(again, x, w);
  EXPECT_TRUE(at::equal(again, y));
}

TEST(RowProductTensors, CountWhatTheyWouldDoWithoutData) {
  const auto meta = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  WorkCount count;
  const WorkScope scope(count);
  row_product_out(at::empty({3, 5}, meta), at::empty({3, 7}, meta), at::empty({5, 7}, meta));
  EXPECT_EQ(count.flops, 2.0 * 3 * 5 * 7);
  EXPECT_EQ(count.memory_bytes, 4 * (15 + 21 + 35));
}

TEST(RowProductTensors, RefuseOthers) {
  const at::Tensor x = at::randn({4, 6}), w = at::randn({3, 6});
  const at::Tensor y = at::empty({4, 3});
  EXPECT_FALSE(has_row_products(x.to(at::kBFloat16)));
  EXPECT_ANY_THROW(row_product_out(y, x, w.narrow(1, 0, 5)));
  EXPECT_ANY_THROW(row_product_out(y, x.t().contiguous().t(), w));
  EXPECT_ANY_THROW(row_product_out(y.to(at::kDouble), x, w));
}

}  // namespace
}  // namespace tessera
