// Attention of a few new tokens of many sequences to all that came before them, with keys and
// values in pages: kPageTokens tokens each (cpu_kernels.h), wherever there was room.
//
// Shape legend, beside that of worker/batch.h: P pages, J = kPageTokens tokens of one. Keys lie
// with the tokens of a page side by side, so that a product takes a vector of them.
//
// float32 and bfloat16 on a CPU run by kernels of ours, of which the result of a query depends on
// nothing but that query and its sequence: not on what else is in the call, nor on which of the
// sequence's tokens are computed in the same call, nor on the number of threads. Other devices and
// types gather the pages and take matrix products. On tensors that stand for a CPU's (stand_in.h)
// the scratch is allocated, and nothing computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

// Of one layer, in its compute dtype.
struct PageTensors {
  at::Tensor keys_PKHJ, values_PKJH;
};

// New tokens of one sequence, which are its last ones.
struct PagedSpan {
  int64_t query_row, num_queries;  // rows of q, and of the new keys and values; at least 1
  int64_t num_keys;                // tokens of the sequence, the new ones included
  // The sequence's pages in its order: token t is in pages[t / J], at t % J. Those before what the
  // window shows of its first query are not looked at.
  std::span<const int32_t> pages;

  int64_t position(int64_t query) const { return num_keys - num_queries + query; }
};

// Writes the new tokens' keys and values, k_TKH and v_TKH [T, K, H], to their pages. No page that
// is written to is in two spans.
void store_in_pages(const PageTensors& to, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                    const std::vector<PagedSpan>& spans);

// Writes out_TNH, contiguous: query head n attends by key/value head n * K / N to its token and
// those before it, `window` in all (0: no limit). Scores are scaled by 1 / sqrt(H). Requires the
// last dimension of q to be contiguous.
void paged_attention_out(const at::Tensor& out_TNH, const at::Tensor& q_TNH,
                         const PageTensors& from, const std::vector<PagedSpan>& spans,
                         int64_t window);

// Floating-point operations of that.
double paged_attention_flops(const at::Tensor& q_TNH, const std::vector<PagedSpan>& spans,
                             int64_t window);

}  // namespace tessera
