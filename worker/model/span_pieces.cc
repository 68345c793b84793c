#include "worker/model/span_pieces.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "worker/kernels/stand_in.h"
#include "worker/model/attention_pieces.h"

// Shapes beside those of worker/batch.h: B queries and L keys of a piece, G query heads a key/value
// head, R = G * B.
namespace tessera {
namespace {

// Queries of a piece that needs a mask, which is of all its keys.
constexpr int64_t kMinMasked = 32, kMaxMasked = 256;
// Of a piece whose scores are made whole.
constexpr int64_t kMaxPlain = 128;

enum class Hides {
  kNothing,
  kFuture,
  kSomething
};  // kFuture: square, and what is above the diagonal

struct Piece {
  AttentionSpan span;
  Hides hides;
};

Hides hidden_in(const AttentionSpan& span, int64_t window) {
  const bool in_window = span.first_seen(span.num_queries - 1, window) == 0;
  if (in_window && span.last_seen(0) == span.num_keys) return Hides::kNothing;
  const bool square = span.offset == 0 && span.num_keys == span.num_queries;
  return in_window && square ? Hides::kFuture : Hides::kSomething;
}

// Queries [first, first + count) of the span with what they see.
AttentionSpan block_of(const AttentionSpan& span, int64_t first, int64_t count, int64_t window) {
  const int64_t key = span.first_seen(first, window);
  const int64_t end = span.last_seen(first + count - 1);
  return {span.query_row + first, count, span.key_row + key, end - key, span.offset + first - key};
}

void cut_in_blocks(const AttentionSpan& span, int64_t window, int64_t most,
                   std::vector<Piece>& pieces) {
  for (int64_t first = 0; first < span.num_queries; first += most) {
    const AttentionSpan block =
        block_of(span, first, std::min(most, span.num_queries - first), window);
    pieces.push_back({block, hidden_in(block, window)});
  }
}

// Without masks where the kernel knows better: keys that all queries see are apart from those that
// begin with the queries. A query may be in several pieces.
std::vector<Piece> flash_pieces(const SpanInputs& inputs) {
  std::vector<Piece> pieces;
  for (const AttentionSpan& span : inputs.spans) {
    const Hides hides = hidden_in(span, inputs.window);
    const bool in_window = span.first_seen(span.num_queries - 1, inputs.window) == 0;
    if (hides != Hides::kSomething) {
      pieces.push_back({span, hides});
    } else if (in_window && span.ends_together()) {
      AttentionSpan before = span, own = span;
      before.num_keys = span.offset;
      own.key_row += span.offset;
      own.num_keys -= span.offset;
      own.offset = 0;
      pieces.push_back({before, Hides::kNothing});
      pieces.push_back({own, Hides::kFuture});
    } else {
      const int64_t wanted = inputs.window == 0 ? kMaxMasked : inputs.window;
      cut_in_blocks(span, inputs.window, std::clamp(wanted, kMinMasked, kMaxMasked), pieces);
    }
  }
  return pieces;
}

std::vector<Piece> plain_pieces(const SpanInputs& inputs) {
  std::vector<Piece> pieces;
  for (const AttentionSpan& span : inputs.spans)
    cut_in_blocks(span, inputs.window, kMaxPlain, pieces);
  return pieces;
}

// [B, L]: 0 or -infinity.
at::Tensor mask_of(const AttentionSpan& span, int64_t window, const at::TensorOptions& options) {
  const at::Tensor hidden = at::full({span.num_queries, span.num_keys},
                                     -std::numeric_limits<double>::infinity(), options);
  at::Tensor mask = hidden.triu(span.offset + 1);
  if (window > 0 && span.first_seen(span.num_queries - 1, window) > 0)
    mask.add_(hidden.tril(span.offset - window));
  return mask;
}

at::Tensor queries_of(const AttentionSpan& span, const at::Tensor& x_TNH) {
  return token_view(x_TNH, span.query_row, span.num_queries);
}
at::Tensor keys_of(const AttentionSpan& span, const at::Tensor& x_UKH) {
  return token_view(x_UKH, span.key_row, span.num_keys);
}
at::Tensor lse_of(const AttentionSpan& span, const at::Tensor& lse_NT) {
  return lse_NT.narrow(1, span.query_row, span.num_queries);
}

// What ATen's flash kernel takes: of bytes that a mask has, none where `hides` says enough.
std::optional<at::Tensor> flash_mask(const Piece& piece, int64_t window, const at::Tensor& like) {
  if (piece.hides != Hides::kSomething) return std::nullopt;
  return mask_of(piece.span, window, like.options());
}

// The scores of a piece, whole.
class PlainScores {
 public:
  PlainScores(const Piece& piece, const SpanInputs& inputs)
      : span_(piece.span),
        num_kv_heads_(inputs.k_UKH.size(1)),
        scale_(1 / std::sqrt(double(inputs.q_TNH.size(2)))) {
    q_KRH_ = queries(inputs.q_TNH);
    k_KLH_ = keys_of(span_, inputs.k_UKH).squeeze(0);
    v_KLH_ = keys_of(span_, inputs.v_UKH).squeeze(0);
    scores_KRL_ = at::matmul(q_KRH_, k_KLH_.transpose(1, 2)).to(at::kFloat).mul_(scale_);
    if (piece.hides == Hides::kNothing) return;
    scores_KRL_.view({num_kv_heads_, -1, span_.num_queries, span_.num_keys})
        .add_(mask_of(span_, inputs.window, scores_KRL_.options()));
  }

  void add(const AttentionSums& sums) {
    const at::Tensor lse_KR1 = scores_KRL_.logsumexp(-1, /*keepdim=*/true);
    const at::Tensor p_KRL = scores_KRL_.sub_(lse_KR1).exp_().to(v_KLH_.scalar_type());
    const at::Tensor out_KRH = at::matmul(p_KRL, v_KLH_);
    merge_(sums, span_.query_row,
           out_KRH.view({-1, span_.num_queries, out_KRH.size(2)}).transpose(0, 1),
           lse_KR1.view({-1, span_.num_queries}));
  }

  void add_gradients(const AttentionGradients& grads, const AttendedTo& attended) {
    const at::ScalarType dtype = q_KRH_.scalar_type();
    const at::Tensor lse_KR1 =
        lse_of(span_, attended.lse_NT).reshape({num_kv_heads_, -1}).unsqueeze(2);
    const at::Tensor p_KRL = scores_KRL_.sub_(lse_KR1).exp_();
    const at::Tensor grad_KRH = queries(attended.grad_out_TNH);
    const at::Tensor mean_KR1 =
        (grad_KRH.to(at::kFloat) * queries(attended.out_TNH)).sum(-1, /*keepdim=*/true);
    keys_of(span_, grads.v_TKH)
        .squeeze(0)
        .add_(at::matmul(p_KRL.to(dtype).transpose(1, 2), grad_KRH));
    const at::Tensor wide_KRL = at::matmul(grad_KRH, v_KLH_.transpose(1, 2)).to(at::kFloat);
    const at::Tensor grad_KRL = wide_KRL.sub_(mean_KR1).mul_(p_KRL).mul_(scale_).to(dtype);
    keys_of(span_, grads.k_TKH).squeeze(0).add_(at::matmul(grad_KRL.transpose(1, 2), q_KRH_));
    at::Tensor grad_q = queries_of(span_, grads.q_TNH);
    grad_q.add_(at::matmul(grad_KRL, k_KLH_).view(grad_q.sizes()));
  }

 private:
  at::Tensor queries(const at::Tensor& x_TNH) const {
    return queries_of(span_, x_TNH).reshape({num_kv_heads_, -1, x_TNH.size(2)});
  }

  AttentionSpan span_;
  int64_t num_kv_heads_;
  double scale_;
  at::Tensor q_KRH_, k_KLH_, v_KLH_, scores_KRL_;
};

}  // namespace

void merge_(const AttentionSums& sums, int64_t row, const at::Tensor& out_BNH,
            const at::Tensor& lse_NB) {
  at::Tensor out = sums.out_TNH.narrow(0, row, out_BNH.size(0));
  at::Tensor lse = sums.lse_NT.narrow(1, row, out_BNH.size(0));
  const at::Tensor both = at::logaddexp(lse, lse_NB);
  const auto share_of = [&](const at::Tensor& of) {
    return (of - both).exp_().transpose(0, 1).unsqueeze(2);
  };
  out.mul_(share_of(lse)).add_(out_BNH.to(at::kFloat).mul_(share_of(lse_NB)));
  lse.copy_(both);
}

void add_attention_of_pieces_(const AttentionSums& sums, const SpanInputs& inputs) {
  if (!on_cpu(inputs.q_TNH)) {
    for (const Piece& piece : plain_pieces(inputs)) PlainScores(piece, inputs).add(sums);
    return;
  }
  for (const Piece& piece : flash_pieces(inputs)) {
    const AttentionSpan& span = piece.span;
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        queries_of(span, inputs.q_TNH), keys_of(span, inputs.k_UKH), keys_of(span, inputs.v_UKH),
        /*dropout_p=*/0.0, /*is_causal=*/piece.hides == Hides::kFuture,
        flash_mask(piece, inputs.window, sums.lse_NT));
    merge_(sums, span.query_row, out.squeeze(0).transpose(0, 1), lse.squeeze(0));
  }
}

void add_attention_of_pieces_gradients_(const AttentionGradients& grads, const AttendedTo& attended,
                                        const SpanInputs& inputs) {
  if (!on_cpu(inputs.q_TNH)) {
    for (const Piece& piece : plain_pieces(inputs))
      PlainScores(piece, inputs).add_gradients(grads, attended);
    return;
  }
  for (const Piece& piece : flash_pieces(inputs)) {
    const AttentionSpan& span = piece.span;
    const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        queries_of(span, attended.grad_out_TNH), queries_of(span, inputs.q_TNH),
        keys_of(span, inputs.k_UKH), keys_of(span, inputs.v_UKH),
        queries_of(span, attended.out_TNH), lse_of(span, attended.lse_NT).contiguous().unsqueeze(0),
        /*dropout_p=*/0.0,
        /*is_causal=*/piece.hides == Hides::kFuture,
        flash_mask(piece, inputs.window, attended.lse_NT));
    queries_of(span, grads.q_TNH).add_(grad_q);
    keys_of(span, grads.k_TKH).add_(grad_k);
    keys_of(span, grads.v_TKH).add_(grad_v);
  }
}

}  // namespace tessera
