#include "worker/model/gathered_attention.h"

#include <ATen/ops/zeros.h>

#include <vector>

#include "worker/memory/ledger.h"
#include "worker/model/span_attention.h"
#include "worker/model/stream_exchange.h"

namespace tessera {
namespace {

// body(spans) for each of this rank's chunks of queries.
template <typename Body>
void each_chunk(const Documents& documents, int64_t window, const Body& body) {
  const StreamPart& part = *documents.part;
  for (const int which : {0, 1}) {
    const TokenRange queries{part.begin(which), part.chunk_tokens, which * part.chunk_tokens};
    body(attention_spans(documents.cu_seqlens, window, queries, {0, part.num_stream_tokens()}));
  }
}

at::Tensor wide_zeros(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(at::kFloat));
}

}  // namespace

void gathered_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse,
                            const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, const Documents& documents, int64_t window) {
  const at::Tensor k_UKH = gather_stream(k_TKH, *documents.part);
  const at::Tensor v_UKH = gather_stream(v_TKH, *documents.part);
  const AttentionSums sums = make_attention_sums(q_TNH);
  each_chunk(documents, window, [&](const std::vector<AttentionSpan>& spans) {
    add_attention_(sums, {q_TNH, k_UKH, v_UKH, spans, window});
  });
  out_TNH.copy_(sums.out_TNH);
  lse.view(sums.lse_NT.sizes()).copy_(sums.lse_NT);
}

void gathered_attention_backward_out(const AttentionGradients& grads,
                                     const at::Tensor& grad_out_TNH, const at::Tensor& q_TNH,
                                     const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                                     const at::Tensor& out_TNH, const at::Tensor& lse,
                                     const Documents& documents, int64_t window) {
  const at::Tensor k_UKH = gather_stream(k_TKH, *documents.part);
  const at::Tensor v_UKH = gather_stream(v_TKH, *documents.part);
  const at::Tensor grad_q = wide_zeros(q_TNH);
  AttentionGradients sums{grad_q, {}, {}};
  {
    const OwnerScope owner(Owner::kCommunication);
    sums.k_TKH = wide_zeros(k_UKH);
    sums.v_TKH = wide_zeros(v_UKH);
  }
  const at::Tensor lse_NT = lse.view({q_TNH.size(1), q_TNH.size(0)});
  each_chunk(documents, window, [&](const std::vector<AttentionSpan>& spans) {
    add_attention_gradients_(sums, {grad_out_TNH, out_TNH, lse_NT},
                             {q_TNH, k_UKH, v_UKH, spans, window});
  });
  grads.q_TNH.copy_(sums.q_TNH);
  grads.k_TKH.copy_(scatter_stream_sum(sums.k_TKH, *documents.part));
  grads.v_TKH.copy_(scatter_stream_sum(sums.v_TKH, *documents.part));
}

}  // namespace tessera
