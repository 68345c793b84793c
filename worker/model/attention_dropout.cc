#include "worker/model/attention_dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "worker/model/attention_pieces.h"
#include "worker/model/dropout.h"
#include "worker/model/kept_attention.h"

// Shapes beside those of worker/batch.h: B queries and L keys of a piece, G query heads a key/value
// head, R = G * B.
namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kBlock = 128;

// A piece, and the one of the whole stream that its masks are drawn for.
struct DrawnPiece {
  AttentionPiece piece;
  AttentionPiece whole;
  int64_t first;  // of its queries, in the whole one
};

std::vector<DrawnPiece> drawn_pieces(const Documents& documents, int64_t window) {
  std::vector<DrawnPiece> drawn;
  for (const AttentionPiece& whole : attention_pieces(documents.cu_seqlens, window, kBlock)) {
    if (!documents.part) {
      drawn.push_back({whole, whole, 0});
      continue;
    }
    for (const int which : {0, 1}) {
      const int64_t chunk = documents.part->begin(which), size = documents.part->chunk_tokens;
      const int64_t from = std::max(whole.query_begin, chunk);
      const int64_t to = std::min(whole.query_begin + whole.num_queries, chunk + size);
      if (from >= to) continue;
      drawn.push_back(
          {{from - chunk + which * size, to - from, whole.key_begin, to - whole.key_begin},
           whole,
           from - whole.query_begin});
    }
  }
  return drawn;
}

// What forward and backward both compute of a piece.
class Piece {
 public:
  Piece(const DrawnPiece& drawn, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
        const at::Tensor& v_TKH, const AttentionOptions& options)
      : piece_(drawn.piece),
        num_kv_heads_(k_TKH.size(1)),
        scale_(1 / std::sqrt(double(q_TNH.size(2)))) {
    q_KRH_ = queries(q_TNH);
    k_KLH_ = keys(k_TKH);
    v_KLH_ = keys(v_TKH);
    const int64_t groups = q_TNH.size(1) / num_kv_heads_;
    at::Tensor scores = at::matmul(q_KRH_, k_KLH_.transpose(1, 2)).to(at::kFloat).mul_(scale_);
    scores.view({num_kv_heads_, groups, piece_.num_queries, piece_.num_keys})
        .add_(piece_mask(piece_, options.window, scores.options()));
    probabilities_KRL_ = scores.softmax(-1);
    const AttentionPiece& whole = drawn.whole;
    const uint64_t draw = make_draw({options.draw, static_cast<uint64_t>(whole.query_begin)});
    mask_KRL_ = draw_mask({num_kv_heads_, groups * whole.num_queries, whole.num_keys},
                          options.dropout, draw, scores.options());
    if (whole.num_queries == piece_.num_queries) return;
    mask_KRL_ = mask_KRL_.view({num_kv_heads_, groups, whole.num_queries, whole.num_keys})
                    .narrow(2, drawn.first, piece_.num_queries)
                    .narrow(3, 0, piece_.num_keys)
                    .reshape(scores.sizes());
  }

  at::Tensor out() const { return at::matmul(kept(), v_KLH_); }

  struct Gradients {
    at::Tensor q_KRH, k_KLH, v_KLH;
  };
  Gradients gradients(const at::Tensor& grad_KRH) const {
    const at::ScalarType dtype = q_KRH_.scalar_type();
    at::Tensor grad_KRL =
        at::matmul(grad_KRH, v_KLH_.transpose(1, 2)).to(at::kFloat).mul_(mask_KRL_);
    const at::Tensor mean_KR1 = (grad_KRL * probabilities_KRL_).sum(-1, /*keepdim=*/true);
    const at::Tensor scores_KRL =
        grad_KRL.sub_(mean_KR1).mul_(probabilities_KRL_).mul_(scale_).to(dtype);
    return {at::matmul(scores_KRL, k_KLH_), at::matmul(scores_KRL.transpose(1, 2), q_KRH_),
            at::matmul(kept().transpose(1, 2), grad_KRH)};
  }

  // [T, N, H] <-> the piece's part as [K, R, H].
  at::Tensor queries(const at::Tensor& x_TNH) const {
    return token_view(x_TNH, piece_.query_begin, piece_.num_queries)
        .reshape({num_kv_heads_, -1, x_TNH.size(2)});
  }
  void put_queries(const at::Tensor& x_TNH, const at::Tensor& part_KRH) const {
    at::Tensor view = token_view(x_TNH, piece_.query_begin, piece_.num_queries);
    view.copy_(part_KRH.view(view.sizes()));
  }
  at::Tensor keys(const at::Tensor& x_TKH) const {
    return token_view(x_TKH, piece_.key_begin, piece_.num_keys).squeeze(0);
  }

 private:
  at::Tensor kept() const { return (probabilities_KRL_ * mask_KRL_).to(v_KLH_.scalar_type()); }

  AttentionPiece piece_;
  int64_t num_kv_heads_;
  double scale_;
  at::Tensor q_KRH_, k_KLH_, v_KLH_, probabilities_KRL_, mask_KRL_;
};

struct DropoutAttention : Function<DropoutAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, const Documents& documents, int64_t window,
                            double share, int64_t draw, int64_t kept) {
    const AttentionOptions options{window, share, static_cast<uint64_t>(draw)};
    const std::vector<DrawnPiece> pieces = drawn_pieces(documents, window);
    const AttentionOutputs outputs = kept_or_run(kept, [&] {
      const AttentionOutputs made{
          at::empty_like(q_TNH, q_TNH.options(), at::MemoryFormat::Contiguous), {}};
      for (const DrawnPiece& drawn : pieces) {
        const Piece piece(drawn, q_TNH, k_TKH, v_TKH, options);
        piece.put_queries(made.out_TNH, piece.out());
      }
      return made;
    });
    ctx->save_for_backward({q_TNH, k_TKH, v_TKH});
    ctx->saved_data["cu_seqlens"] = documents.cu_seqlens;
    std::vector<int64_t> part;
    if (documents.part)
      part = {documents.part->rank, documents.part->size, documents.part->chunk_tokens};
    ctx->saved_data["part"] = part;
    ctx->saved_data["window"] = window;
    ctx->saved_data["share"] = share;
    ctx->saved_data["draw"] = draw;
    return outputs.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const AttentionOptions options{ctx->saved_data["window"].toInt(),
                                   ctx->saved_data["share"].toDouble(),
                                   static_cast<uint64_t>(ctx->saved_data["draw"].toInt())};
    Documents documents{ctx->saved_data["cu_seqlens"].toIntVector(), {}};
    const std::vector<int64_t> part = ctx->saved_data["part"].toIntVector();
    if (!part.empty()) {
      documents.part = StreamPart{.rank = static_cast<int>(part[0]),
                                  .size = static_cast<int>(part[1]),
                                  .chunk_tokens = part[2]};
    }
    at::Tensor grad_q = at::empty_like(q, q.options(), at::MemoryFormat::Contiguous);
    at::Tensor grad_k = at::zeros_like(k, k.options(), at::MemoryFormat::Contiguous);
    at::Tensor grad_v = at::zeros_like(v, v.options(), at::MemoryFormat::Contiguous);
    for (const DrawnPiece& drawn : drawn_pieces(documents, options.window)) {
      const Piece piece(drawn, q, k, v, options);
      const Piece::Gradients gradients = piece.gradients(piece.queries(grads[0]));
      piece.put_queries(grad_q, gradients.q_KRH);
      piece.keys(grad_k).add_(gradients.k_KLH);
      piece.keys(grad_v).add_(gradients.v_KLH);
    }
    const at::Tensor none;
    return {grad_q, grad_k, grad_v, none, none, none, none, none};
  }
};

}  // namespace

at::Tensor attend_with_dropout(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                               const at::Tensor& v_TKH, const Documents& documents,
                               const AttentionOptions& options) {
  return DropoutAttention::apply(q_TNH, k_TKH, v_TKH, documents, options.window, options.dropout,
                                 static_cast<int64_t>(options.draw),
                                 reinterpret_cast<int64_t>(options.kept));
}

}  // namespace tessera
