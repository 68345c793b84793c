#include "worker/model/fused_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>

#include "worker/kernels/causal_attention.h"
#include "worker/kernels/tensor_ops.h"
#include "worker/model/context_attention.h"

namespace tessera {
namespace {

// Documents are taken together up to so many tokens; a longer one is taken alone.
constexpr int64_t kSpanTokens = 1024;

// C tokens of whole documents; where the stream is shared, all of this rank.
struct Span {
  int64_t begin, length;
  std::vector<int64_t> cu_seqlens;  // from `begin` on; of a shared stream none

  at::Tensor of(const at::Tensor& x_T) const { return x_T.narrow(0, begin, length); }
};

std::vector<Span> spans_of(const Documents& documents) {
  if (documents.part) return {{0, 2 * documents.part->chunk_tokens, {}}};
  const std::vector<int64_t>& cu_seqlens = documents.cu_seqlens;
  std::vector<Span> spans;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t begin = cu_seqlens[s], end = cu_seqlens[s + 1];
    if (spans.empty() || end - spans.back().begin > kSpanTokens) spans.push_back({begin, 0, {0}});
    spans.back().cu_seqlens.push_back(end - spans.back().begin);
    spans.back().length = end - spans.back().begin;
  }
  return spans;
}

// [C, (N + 2 K) H] as its three parts by heads.
struct HeadParts {
  at::Tensor q_CNH, k_CKH, v_CKH;

  HeadParts(const at::Tensor& qkv, const SelfAttention& a) {
    int64_t column = 0;
    const auto take = [&](int64_t heads) {
      const int64_t width = heads * a.head_dim;
      column += width;
      return qkv.narrow(1, column - width, width).unflatten(1, {heads, a.head_dim});
    };
    q_CNH = take(a.num_heads);
    k_CKH = take(a.num_kv_heads);
    v_CKH = take(a.num_kv_heads);
  }
};

// What spans need beside their input, used by all of them in turn.
struct Buffers {
  Buffers(const at::Tensor& x_TD, const SelfAttention& a, const std::vector<Span>& spans) {
    int64_t tokens = 0;
    for (const Span& span : spans) tokens = std::max(tokens, span.length);
    normed_CD = at::empty({tokens, x_TD.size(1)}, x_TD.options());
    qkv = at::empty({tokens, a.qkv.width()}, x_TD.options());
    if (a.q_norm != nullptr) normed_qkv = at::empty_like(qkv);
  }

  at::Tensor normed_CD, qkv;
  at::Tensor normed_qkv;  // where q and k are normed, apart from what the norms' backward reads
};

// Queries, keys and values of a span.
struct Projected {
  at::Tensor normed_CD;
  HeadParts raw;       // as projected; where there is no norm of q and k, already turned
  HeadParts attended;  // as attention takes them; its v is raw's

  Projected(const at::Tensor& x_CD, const SelfAttention& a, const Stream& stream,
            const Buffers& buffers, const Span& span)
      : normed_CD(buffers.normed_CD.narrow(0, 0, span.length)),
        raw(buffers.qkv.narrow(0, 0, span.length), a),
        attended(raw) {
    rms_norm_out(normed_CD, x_CD, a.norm->value, a.eps);
    a.qkv.forward(buffers.qkv.narrow(0, 0, span.length), normed_CD);
    if (a.q_norm != nullptr) {
      attended = HeadParts(buffers.normed_qkv.narrow(0, 0, span.length), a);
      attended.v_CKH = raw.v_CKH;
      rms_norm_out(attended.q_CNH, raw.q_CNH, a.q_norm->value, a.eps);
      rms_norm_out(attended.k_CKH, raw.k_CKH, a.k_norm->value, a.eps);
    }
    turn(attended, stream, span, /*back=*/false);
  }

  static void turn(const HeadParts& parts, const Stream& stream, const Span& span, bool back) {
    const at::Tensor cos_CH = span.of(stream.cos_TH), sin_CH = span.of(stream.sin_TH);
    rotate_out(parts.q_CNH, parts.q_CNH, cos_CH, sin_CH, back);
    rotate_out(parts.k_CKH, parts.k_CKH, cos_CH, sin_CH, back);
  }
};

at::Tensor lse_of(const at::Tensor& lse, const Span& span, int64_t num_heads) {
  return lse.narrow(0, span.begin * num_heads, span.length * num_heads);
}

void attend_span_out(const at::Tensor& out_CNH, const at::Tensor& lse, const HeadParts& p,
                     const SelfAttention& a, const Documents& documents, const Span& span) {
  if (documents.part) {
    context_attention_out(out_CNH, lse, p.q_CNH, p.k_CKH, p.v_CKH, documents, a.window);
  } else {
    causal_attention_out(out_CNH, lse, p.q_CNH, p.k_CKH, p.v_CKH, span.cu_seqlens, a.window);
  }
}

void span_backward_out(const HeadParts& grads, const at::Tensor& grad_out_CNH, const HeadParts& p,
                       const at::Tensor& out_CNH, const at::Tensor& lse, const SelfAttention& a,
                       const Documents& documents, const Span& span) {
  const AttentionGradients out{grads.q_CNH, grads.k_CKH, grads.v_CKH};
  if (documents.part) {
    context_attention_backward_out(out, grad_out_CNH, p.q_CNH, p.k_CKH, p.v_CKH, out_CNH, lse,
                                   documents, a.window);
  } else {
    causal_attention_backward_out(out, grad_out_CNH, p.q_CNH, p.k_CKH, p.v_CKH, out_CNH, lse,
                                  span.cu_seqlens, a.window);
  }
}

}  // namespace

void attend_out(const at::Tensor& attended, const at::Tensor& lse, const at::Tensor& x_TD,
                const SelfAttention& a, const Stream& stream) {
  const std::vector<Span> spans = spans_of(*stream.documents);
  const Buffers buffers(x_TD, a, spans);
  const at::Tensor out_TNH = attended.unflatten(1, {a.num_heads, a.head_dim});
  for (const Span& span : spans) {
    const Projected p(span.of(x_TD), a, stream, buffers, span);
    attend_span_out(span.of(out_TNH), lse_of(lse, span, a.num_heads), p.attended, a,
                    *stream.documents, span);
  }
}

void attention_backward_(const at::Tensor& grad_TD, const at::Tensor& x_TD,
                         const at::Tensor& attended, const at::Tensor& lse, const SelfAttention& a,
                         const Stream& stream) {
  const std::vector<Span> spans = spans_of(*stream.documents);
  const Buffers buffers(x_TD, a, spans);
  const at::Tensor all_grad_qkv = at::empty_like(buffers.qkv);
  const at::Tensor all_grad_attended =
      at::empty({buffers.qkv.size(0), attended.size(1)}, x_TD.options());
  Projection::Backward qkv(a.qkv), o(a.o);
  GradientSum norm(*a.norm);
  std::optional<GradientSum> q_norm, k_norm;
  if (a.q_norm != nullptr) {
    q_norm.emplace(*a.q_norm);
    k_norm.emplace(*a.k_norm);
  }
  const auto heads = [&](const at::Tensor& x) { return x.unflatten(1, {a.num_heads, a.head_dim}); };
  for (const Span& span : spans) {
    const Projected p(span.of(x_TD), a, stream, buffers, span);
    const at::Tensor grad_CD = span.of(grad_TD), attended_C = span.of(attended);
    const at::Tensor grad_attended = all_grad_attended.narrow(0, 0, span.length);
    const at::Tensor grad_qkv = all_grad_qkv.narrow(0, 0, span.length);
    o.input_gradient(grad_attended, grad_CD);
    o.add_gradients(grad_CD, attended_C);
    const HeadParts grads(grad_qkv, a);
    span_backward_out(grads, heads(grad_attended), p.attended, heads(attended_C),
                      lse_of(lse, span, a.num_heads), a, *stream.documents, span);
    Projected::turn(grads, stream, span, /*back=*/true);
    if (q_norm) {
      rms_norm_backward_out(grads.q_CNH, q_norm->sum(), grads.q_CNH, p.raw.q_CNH, a.q_norm->value,
                            {}, a.eps);
      rms_norm_backward_out(grads.k_CKH, k_norm->sum(), grads.k_CKH, p.raw.k_CKH, a.k_norm->value,
                            {}, a.eps);
    }
    qkv.add_gradients(grad_qkv, p.normed_CD);
    const at::Tensor& grad_normed_CD = p.normed_CD;  // not needed any more
    qkv.input_gradient(grad_normed_CD, grad_qkv);
    rms_norm_backward_out(grad_CD, norm.sum(), grad_normed_CD, span.of(x_TD), a.norm->value,
                          /*residual=*/grad_CD, a.eps);
  }
  o.finish();
  qkv.finish();
  norm.finish();
  if (q_norm) {
    q_norm->finish();
    k_norm->finish();
  }
}

}  // namespace tessera
