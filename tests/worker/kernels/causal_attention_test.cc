// Attention added up from spans, against the definition in double precision.
#include "worker/kernels/causal_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/plain_attention.h"

namespace tessera {
namespace {

using testing::AttentionCase;
using testing::PlainAttention;

// Pairs by the definition: each query of the range, each key of the range.
std::vector<std::pair<int64_t, int64_t>> seen_pairs(const std::vector<int64_t>& cu_seqlens,
                                                    int64_t window, const TokenRange& queries,
                                                    const TokenRange& keys) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t q = queries.begin; q < queries.end(); ++q) {
    for (int64_t k = keys.begin; k < keys.end(); ++k) {
      if (testing::sees(cu_seqlens, window, q, k)) pairs.emplace_back(q, k);
    }
  }
  return pairs;
}

TEST(AttentionSpans, HoldThePairsThatSeeEachOtherAndNoIdleRows) {
  std::mt19937 random(7);
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % most); };
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<int64_t> cu_seqlens{0};
    while (cu_seqlens.back() < 40) cu_seqlens.push_back(cu_seqlens.back() + 1 + below(20));
    const int64_t tokens = cu_seqlens.back(), window = trial % 2 ? 1 + below(12) : 0;
    const auto draw_range = [&]() -> TokenRange {
      const int64_t begin = below(tokens);
      return {begin, 1 + below(tokens - begin), below(5)};
    };
    const TokenRange queries = draw_range(), keys = draw_range();
    const auto spans = attention_spans(cu_seqlens, window, queries, keys);
    std::vector<std::pair<int64_t, int64_t>> pairs;
    for (const AttentionSpan& span : spans) {
      ASSERT_GE(span.offset, 0);
      std::vector<bool> is_seen(span.num_keys);
      for (int64_t i = 0; i < span.num_queries; ++i) {
        ASSERT_LT(span.first_seen(i, window), span.last_seen(i));
        for (int64_t j = span.first_seen(i, window); j < span.last_seen(i); ++j) {
          pairs.emplace_back(span.query_row + i - queries.row + queries.begin,
                             span.key_row + j - keys.row + keys.begin);
          is_seen[j] = true;
        }
      }
      ASSERT_EQ(std::count(is_seen.begin(), is_seen.end(), false), 0);
    }
    EXPECT_EQ(pairs, seen_pairs(cu_seqlens, window, queries, keys));
    EXPECT_EQ(num_seen_pairs(spans, window), static_cast<double>(pairs.size()));
  }
}

TEST(AttentionSpans, OfTheWholeStreamAreItsDocuments) {
  const auto spans = attention_spans({0, 3, 3, 8}, 0, {0, 8}, {0, 8});
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].query_row, 3);
  EXPECT_EQ(spans[1].num_keys, 5);
  EXPECT_TRUE(spans[1].ends_together());
  EXPECT_EQ(attention_spans({0, 3, 3, 8}).size(), 2u);
}

class CausalAttentionOfSpans : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(CausalAttentionOfSpans, AddsUpToTheDefinition) {
  const AttentionCase& c = GetParam();
  const PlainAttention plain(c);
  const int64_t tokens = c.cu_seqlens.back();
  const at::Tensor out = at::full(plain.q.sizes(), NAN);
  const at::Tensor lse = at::full({c.heads, tokens}, -INFINITY);
  const auto each_pair = [&](const auto& body) {
    // The last keys first: what is added, and in which order, is all the same.
    for (size_t key = c.cuts.size() - 1; key-- > 0;) {
      for (size_t query = 0; query + 1 < c.cuts.size(); ++query) {
        const TokenRange queries{c.cuts[query], c.cuts[query + 1] - c.cuts[query], c.cuts[query]};
        const TokenRange keys{c.cuts[key], c.cuts[key + 1] - c.cuts[key], c.cuts[key]};
        body(attention_spans(c.cu_seqlens, c.window, queries, keys));
      }
    }
  };
  each_pair([&](const std::vector<AttentionSpan>& spans) {
    add_causal_attention_(out, lse, plain.q, plain.k, plain.v, spans, c.window);
  });
  testing::expect_close(out, plain.out, 2e-6);
  testing::expect_close(lse, plain.lse, 2e-6);
  const AttentionGradients grads{at::zeros_like(plain.q), at::zeros_like(plain.k),
                                 at::zeros_like(plain.v)};
  each_pair([&](const std::vector<AttentionSpan>& spans) {
    add_causal_attention_gradients_(grads, plain.grad_out, plain.q, plain.k, plain.v, out, lse,
                                    spans, c.window);
  });
  testing::expect_close(grads.q_TNH, plain.grad_q, 1e-5);
  testing::expect_close(grads.k_TKH, plain.grad_k, 1e-5);
  testing::expect_close(grads.v_TKH, plain.grad_v, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Cases, CausalAttentionOfSpans,
                         ::testing::ValuesIn(testing::attention_cases()));

// One piece that holds everything is the whole stream's attention, to the bit.
TEST(CausalAttentionOfSpans, OnePieceIsTheWholeStream) {
  const AttentionCase c{{0, 30, 31, 200}, /*window=*/50, 4, 2, 16, {0, 200}};
  const PlainAttention plain(c);
  const at::Tensor whole = at::empty(plain.q.sizes()), whole_lse = at::empty({200 * c.heads});
  causal_attention_out(whole, whole_lse, plain.q, plain.k, plain.v, c.cu_seqlens, c.window);
  const at::Tensor out = at::empty(plain.q.sizes()), lse = at::full({c.heads, 200}, -INFINITY);
  add_causal_attention_(out, lse, plain.q, plain.k, plain.v, attention_spans(c.cu_seqlens),
                        c.window);
  EXPECT_TRUE(at::equal(out, whole));
}

}  // namespace
}  // namespace tessera
