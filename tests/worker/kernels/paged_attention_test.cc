// Attention over pages, against the definition in double precision, and to the bit against itself
// with the work cut otherwise.
#include "worker/kernels/paged_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/plain_attention.h"
#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/stand_in.h"

namespace tessera {
namespace {

using testing::AttentionCase;
using testing::PlainAttention;

// Sequences in pages that were dealt at random; what no token was written to is no number.
struct PagedSequences {
  PageTensors tensors;
  std::vector<std::vector<int32_t>> pages;  // of each sequence

  PagedSequences(const AttentionCase& c, const at::TensorOptions& options) {
    int32_t count = 3;
    for (size_t s = 0; s + 1 < c.cu_seqlens.size(); ++s)
      count += static_cast<int32_t>(c.cu_seqlens[s + 1] - c.cu_seqlens[s]) / kPageTokens + 1;
    std::vector<int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(count));
    for (size_t s = 0; s + 1 < c.cu_seqlens.size(); ++s) {
      const int64_t length = c.cu_seqlens[s + 1] - c.cu_seqlens[s];
      pages.emplace_back();
      for (int64_t t = 0; t < length; t += kPageTokens) {
        pages.back().push_back(order.back());
        order.pop_back();
      }
    }
    tensors = {at::full({count, c.kv_heads, c.head_dim, kPageTokens}, NAN, options),
               at::full({count, c.kv_heads, kPageTokens, c.head_dim}, NAN, options)};
  }
};

// All tokens, `step` of each sequence in a call, as a prompt in chunks or token by token.
at::Tensor attend_in_steps(const AttentionCase& c, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, int64_t step) {
  PagedSequences sequences(c, q.options());
  const at::Tensor out = at::zeros(q.sizes(), q.options());
  bool more = true;
  for (int64_t begin = 0; more; begin += step) {
    more = false;
    std::vector<PagedSpan> spans;
    std::vector<at::Tensor> rows;
    std::vector<int64_t> firsts;
    int64_t row = 0;
    for (size_t s = 0; s < sequences.pages.size(); ++s) {
      const int64_t length = c.cu_seqlens[s + 1] - c.cu_seqlens[s];
      const int64_t count = std::min(step, length - begin);
      if (count <= 0) continue;
      more = true;
      spans.push_back({row, count, begin + count, sequences.pages[s]});
      firsts.push_back(c.cu_seqlens[s] + begin);
      row += count;
    }
    const auto gathered = [&](const at::Tensor& x) {
      at::Tensor part = at::empty({row, x.size(1), x.size(2)}, x.options());
      for (size_t i = 0; i < spans.size(); ++i) {
        part.narrow(0, spans[i].query_row, spans[i].num_queries)
            .copy_(x.narrow(0, firsts[i], spans[i].num_queries));
      }
      return part;
    };
    if (!more) break;
    at::Tensor part = at::empty({row, q.size(1), q.size(2)}, q.options());
    store_in_pages(sequences.tensors, gathered(k), gathered(v), spans);
    paged_attention_out(part, gathered(q), sequences.tensors, spans, c.window);
    for (size_t i = 0; i < spans.size(); ++i) {
      out.narrow(0, firsts[i], spans[i].num_queries)
          .copy_(part.narrow(0, spans[i].query_row, spans[i].num_queries));
    }
  }
  return out;
}

class PagedAttention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(PagedAttention, IsAttention) {
  const PlainAttention plain(GetParam());
  for (const int64_t step : {1, 7, 1000}) {
    const at::Tensor out = attend_in_steps(GetParam(), plain.q, plain.k, plain.v, step);
    EXPECT_LT((out - plain.out).abs().max().item<double>(), 2e-6) << "by " << step;
  }
}

TEST_P(PagedAttention, IsAttentionInBfloat16) {
  const PlainAttention plain(GetParam(), at::kBFloat16);
  const at::Tensor q = plain.q.to(at::kBFloat16), k = plain.k.to(at::kBFloat16),
                   v = plain.v.to(at::kBFloat16);
  const at::Tensor out = attend_in_steps(GetParam(), q, k, v, 7);
  EXPECT_LT((out.to(at::kDouble) - plain.out).abs().max().item<double>(), 2e-2);
}

// What other devices run: here in float64, of which there is no kernel of ours.
TEST_P(PagedAttention, IsAttentionByAten) {
  const PlainAttention plain(GetParam());
  const at::Tensor out = attend_in_steps(GetParam(), plain.q.to(at::kDouble),
                                         plain.k.to(at::kDouble), plain.v.to(at::kDouble), 7);
  EXPECT_LT((out - plain.out).abs().max().item<double>(), 1e-12);
}

TEST_P(PagedAttention, AQueryDoesNotDependOnWhatItIsComputedWith) {
  const PlainAttention plain(GetParam());
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor q = plain.q.to(dtype), k = plain.k.to(dtype), v = plain.v.to(dtype);
    const at::Tensor one_by_one = attend_in_steps(GetParam(), q, k, v, 1);
    for (const int64_t step : {5, 16, 1000})
      EXPECT_TRUE(at::equal(attend_in_steps(GetParam(), q, k, v, step), one_by_one)) << step;
  }
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> list = testing::attention_cases();
  // Widths that are no multiple of a vector, and groups that are none of a tile.
  list.push_back({{0, 37, 40}, 0, 3, 1, 10, {}});
  list.push_back({{0, 70}, 17, 20, 1, 12, {}});
  list.push_back({{0, 33, 100}, 0, 6, 2, 64, {}});
  return list;
}
INSTANTIATE_TEST_SUITE_P(Cases, PagedAttention, ::testing::ValuesIn(cases()));

TEST(PageKernels, AgreeOnEveryInstructionSet) {
  constexpr int64_t kRows = 7, kWidth = 21;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  };
  std::vector<float> queries = draw(kRows * kWidth), page = draw(kPageTokens * kWidth);
  std::vector<float> weights = draw(kRows * kPageTokens);
  for (const CpuSet set : {CpuSet::kBaseline, CpuSet::kAvx2, CpuSet::kAvx512}) {
    const CpuKernels* kernels = cpu_kernels(set);
    if (kernels == nullptr) continue;
    std::vector<float> scores(kRows * kPageTokens), out(kRows * kWidth, 1.0f);
    kernels->of_float.page_scores({scores.data(), kPageTokens}, {queries.data(), kWidth},
                                  page.data(), kRows, kWidth);
    kernels->of_float.page_values({out.data(), kWidth}, {weights.data(), kPageTokens}, page.data(),
                                  /*count=*/11, kRows, kWidth);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t j = 0; j < kPageTokens; ++j) {
        double want = 0;
        for (int64_t h = 0; h < kWidth; ++h)
          want += double{queries[r * kWidth + h]} * page[h * kPageTokens + j];
        EXPECT_NEAR(scores[r * kPageTokens + j], want, 1e-5) << kernels->name;
      }
      for (int64_t h = 0; h < kWidth; ++h) {
        double want = 1;
        for (int64_t j = 0; j < 11; ++j)
          want += double{weights[r * kPageTokens + j]} * page[j * kWidth + h];
        EXPECT_NEAR(out[r * kWidth + h], want, 1e-5) << kernels->name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
