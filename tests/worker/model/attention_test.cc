#include "worker/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "worker/model/kept_attention.h"

namespace tessera {
namespace {

Documents documents_of(const std::vector<int64_t>& lengths) {
  Documents documents;
  documents.cu_seqlens = {0};
  for (const int64_t length : lengths)
    documents.cu_seqlens.push_back(documents.cu_seqlens.back() + length);
  return documents;
}

// 0 where a token of a document of that length sees another, else -infinity.
at::Tensor hidden_scores(int64_t length, int64_t window) {
  const at::Tensor all = at::full({length, length}, -INFINITY);
  return window > 0 ? all.triu(1) + all.tril(-window) : all.triu(1);
}

// The definition: softmax over one document's visible scores, key/value heads repeated. `kept`
// [N, length, length] multiplies the probabilities of the only document.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Documents& documents, int64_t window = 0,
                           const at::Tensor& kept = {}) {
  const int64_t repeat = q.size(1) / k.size(1);
  std::vector<at::Tensor> outs;
  for (int64_t s = 0; s < documents.num_documents(); ++s) {
    const int64_t begin = documents.cu_seqlens[s], length = documents.cu_seqlens[s + 1] - begin;
    const auto part = [&](const at::Tensor& x, int64_t times) {
      return x.narrow(0, begin, length).repeat_interleave(times, 1).transpose(0, 1);
    };
    const at::Tensor scores =
        at::matmul(part(q, 1), part(k, repeat).transpose(1, 2)) / std::sqrt(double(q.size(2)));
    at::Tensor probabilities = (scores + hidden_scores(length, window)).softmax(-1);
    if (kept.defined()) probabilities = probabilities * kept;
    outs.push_back(at::matmul(probabilities, part(v, repeat)).transpose(0, 1));
  }
  return at::cat(outs, 0);
}

struct Case {
  std::vector<int64_t> lengths;
  int64_t heads, kv_heads, head_dim;
  int64_t window = 0;
};

// The output, and the gradients of q, k and v.
std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const at::Tensor& upstream,
                            const auto& attention) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_(true));
  const at::Tensor out = attention(leaves[0], leaves[1], leaves[2]);
  torch::autograd::backward({out}, {upstream});
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

void expect_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& plain) {
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i], plain[i], 1e-4, 1e-5))
        << i << (ours[i] - plain[i]).abs().max();
  }
}

class Attention : public testing::TestWithParam<Case> {};

TEST_P(Attention, EqualsTheDefinitionForwardAndBackward) {
  const Case& c = GetParam();
  const Documents documents = documents_of(c.lengths);
  const int64_t tokens = documents.cu_seqlens.back();
  const auto make = [&](int64_t heads) { return at::randn({tokens, heads, c.head_dim}); };
  const std::vector<at::Tensor> inputs{make(c.heads), make(c.kv_heads), make(c.kv_heads)};
  const at::Tensor upstream = make(c.heads);
  expect_close(run(inputs, upstream,
                   [&](const auto& q, const auto& k, const auto& v) {
                     return attend(q, k, v, documents, {.window = c.window});
                   }),
               run(inputs, upstream, [&](const auto& q, const auto& k, const auto& v) {
                 return plain_attention(q, k, v, documents, c.window);
               }));
}

// Windows narrower and wider than a block of queries, than a kernel's block of keys, than a
// document.
INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(Case{{9}, 4, 4, 8}, Case{{5, 1, 12, 3}, 4, 2, 16},
                                         Case{{1, 1, 1}, 2, 1, 8}, Case{{130, 64}, 3, 1, 32},
                                         Case{{9, 5, 3}, 4, 2, 8, 4}, Case{{7, 2}, 2, 2, 8, 1},
                                         Case{{100, 40, 33}, 4, 2, 8, 33},
                                         Case{{700, 80}, 2, 1, 8, 300},
                                         Case{{1500, 20}, 1, 1, 8, 600},
                                         // Longer than whole blocks of queries have scratch for.
                                         Case{{5000}, 1, 1, 4}));

TEST(AttentionDropout, ZeroesItsShareAndScalesTheRestUp) {
  constexpr int64_t kLength = 300;  // three blocks of queries
  constexpr double kShare = 0.3;
  for (const int64_t window : {0, 40}) {
    const Documents documents = documents_of({kLength});
    const std::vector<at::Tensor> inputs{at::randn({kLength, 4, kLength}),
                                         at::randn({kLength, 2, kLength}),
                                         at::eye(kLength).unsqueeze(1).repeat({1, 2, 1})};
    const auto ours = [&](const auto& q, const auto& k, const auto& v) {
      return attend(q, k, v, documents, {window, kShare, /*draw=*/11});
    };
    // With the unit matrix for values, what comes out are the probabilities.
    const at::Tensor out = ours(inputs[0], inputs[1], inputs[2]).transpose(0, 1);
    const at::Tensor kept = (out != 0).to(at::kFloat) / (1 - kShare);
    const at::Tensor visible = hidden_scores(kLength, window) == 0;
    const double num_visible = 4 * visible.sum().item<double>();
    const double share = 1 - (out != 0).sum().item<double>() / num_visible;
    EXPECT_NEAR(share, kShare, 5 * std::sqrt(kShare * (1 - kShare) / num_visible));
    EXPECT_EQ((out != 0).logical_and(visible.logical_not()).sum().item<int64_t>(), 0);

    const at::Tensor upstream = at::randn({kLength, 4, kLength});
    expect_close(run(inputs, upstream, ours),
                 run(inputs, upstream, [&](const auto& q, const auto& k, const auto& v) {
                   return plain_attention(q, k, v, documents, window, kept);
                 }));
  }
}

TEST(AttentionDropout, OneDrawGivesOneMaskAndAnotherAnother) {
  const Documents documents = documents_of({20, 20});
  const at::Tensor x = at::randn({20, 2, 8}).repeat({2, 1, 1});
  const auto with = [&](uint64_t draw) { return attend(x, x, x, documents, {0, 0.5, draw}); };
  EXPECT_TRUE(at::equal(with(1), with(1)));
  EXPECT_FALSE(at::equal(with(1), with(2)));
  const at::Tensor out = with(1);
  EXPECT_FALSE(at::equal(out.narrow(0, 0, 20), out.narrow(0, 20, 20)));
}

// As a layer that is run again in backward has it: the second run takes what the first one made.
TEST(AttentionOutputsKept, AreNotMadeAgain) {
  const Documents documents = documents_of({9, 4});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const double dropout : {0.0, 0.5}) {
      const auto draw = [&](int64_t heads) { return at::randn({13, heads, 8}).to(dtype); };
      const at::Tensor q = draw(4), k = draw(2), v = draw(2), upstream = draw(4);
      const auto gradients = [&](AttentionOutputs* kept) {
        std::vector<at::Tensor> leaves;
        for (const at::Tensor& x : {q, k, v}) leaves.push_back(x.clone().requires_grad_(true));
        const at::Tensor out = attend(leaves[0], leaves[1], leaves[2], documents,
                                      {.dropout = dropout, .draw = 7, .kept = kept});
        torch::autograd::backward({out}, {upstream});
        return at::cat({leaves[0].grad(), leaves[1].grad(), leaves[2].grad()}, 1);
      };
      AttentionOutputs kept;
      const at::Tensor plain = gradients(nullptr);
      EXPECT_TRUE(gradients(&kept).equal(plain));
      ASSERT_TRUE(kept.out_TNH.defined());
      EXPECT_TRUE(gradients(&kept).equal(plain));
      kept.out_TNH.fill_(7);
      const c10::AutoGradMode no_grad(false);
      const AttentionOptions options{.dropout = dropout, .draw = 7, .kept = &kept};
      EXPECT_TRUE(attend(q, k, v, documents, options).eq(7).all().item<bool>());
    }
  }
}

TEST(AttentionIsolation, ADocumentDoesNotFeelItsNeighbours) {
  const Documents documents = documents_of({6, 7});
  at::Tensor q = at::randn({13, 2, 8}), k = at::randn({13, 2, 8}), v = at::randn({13, 2, 8});
  const at::Tensor before = attend(q, k, v, documents).narrow(0, 6, 7).clone();
  for (at::Tensor& x : std::vector<at::Tensor>{q, k, v}) x.narrow(0, 0, 6).fill_(1e4);
  EXPECT_TRUE(at::equal(before, attend(q, k, v, documents).narrow(0, 6, 7)));
}

}  // namespace
}  // namespace tessera
