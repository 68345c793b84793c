#include "worker/model/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/triu.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace tessera {
namespace {

Documents documents_of(const std::vector<int64_t>& lengths) {
  Documents documents;
  documents.cu_seqlens = {0};
  for (const int64_t length : lengths)
    documents.cu_seqlens.push_back(documents.cu_seqlens.back() + length);
  return documents;
}

// The definition: softmax over one document's visible scores, key/value heads repeated.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Documents& documents) {
  const int64_t repeat = q.size(1) / k.size(1);
  std::vector<at::Tensor> outs;
  for (int64_t s = 0; s < documents.num_documents(); ++s) {
    const int64_t begin = documents.cu_seqlens[s], length = documents.cu_seqlens[s + 1] - begin;
    const auto part = [&](const at::Tensor& x, int64_t times) {
      return x.narrow(0, begin, length).repeat_interleave(times, 1).transpose(0, 1);
    };
    const at::Tensor scores =
        at::matmul(part(q, 1), part(k, repeat).transpose(1, 2)) / std::sqrt(double(q.size(2)));
    const at::Tensor hidden = at::full({length, length}, -INFINITY).triu(1);
    outs.push_back(at::matmul((scores + hidden).softmax(-1), part(v, repeat)).transpose(0, 1));
  }
  return at::cat(outs, 0);
}

struct Case {
  std::vector<int64_t> lengths;
  int64_t heads, kv_heads, head_dim;
};

class Attention : public testing::TestWithParam<Case> {};

TEST_P(Attention, EqualsTheDefinitionForwardAndBackward) {
  const Case& c = GetParam();
  const Documents documents = documents_of(c.lengths);
  const int64_t tokens = documents.cu_seqlens.back();
  const auto make = [&](int64_t heads) { return at::randn({tokens, heads, c.head_dim}); };
  const at::Tensor q = make(c.heads), k = make(c.kv_heads), v = make(c.kv_heads),
                   upstream = make(c.heads);
  const auto run = [&](const auto& attention) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& x : {q, k, v}) leaves.push_back(x.detach().clone().requires_grad_(true));
    const at::Tensor out = attention(leaves[0], leaves[1], leaves[2], documents);
    torch::autograd::backward({out}, {upstream});
    return std::vector<at::Tensor>{out.detach(), leaves[0].grad(), leaves[1].grad(),
                                   leaves[2].grad()};
  };
  const auto ours = run(attend), plain = run(plain_attention);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i], plain[i], 1e-4, 1e-5))
        << i << (ours[i] - plain[i]).abs().max();
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(Case{{9}, 4, 4, 8}, Case{{5, 1, 12, 3}, 4, 2, 16},
                                         Case{{1, 1, 1}, 2, 1, 8}, Case{{130, 64}, 3, 1, 32}));

TEST(AttentionIsolation, ADocumentDoesNotFeelItsNeighbours) {
  const Documents documents = documents_of({6, 7});
  at::Tensor q = at::randn({13, 2, 8}), k = at::randn({13, 2, 8}), v = at::randn({13, 2, 8});
  const at::Tensor before = attend(q, k, v, documents).narrow(0, 6, 7).clone();
  for (at::Tensor& x : std::vector<at::Tensor>{q, k, v}) x.narrow(0, 0, 6).fill_(1e4);
  EXPECT_TRUE(at::equal(before, attend(q, k, v, documents).narrow(0, 6, 7)));
}

}  // namespace
}  // namespace tessera
