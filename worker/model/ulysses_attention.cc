#include "worker/model/ulysses_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "worker/memory/ledger.h"
#include "worker/model/context.h"
#include "worker/model/span_attention.h"

// Shapes beside those of worker/batch.h: U tokens of the whole stream, C of a chunk, P ranks, n
// query heads and m key/value heads of a rank, w heads of all that is exchanged at once.
namespace tessera {
namespace {

// Which of a tensor's heads rank r takes: `count` from r * total / size on.
struct DealtHeads {
  DealtHeads(int64_t total, int size)
      : total(total), count(std::max<int64_t>(1, total / size)), size(size) {}

  at::Tensor of_rank(const at::Tensor& x_TNH, int rank) const {
    return x_TNH.narrow(1, rank * total / size, count);
  }
  bool are_shared() const { return total < size; }

  int64_t total, count;
  int size;
};

// Moves tensors of heads between the layout by tokens, [T, N, H] on each rank, and that by heads,
// [U, n, H]. The front chunks of all ranks are the first half of the stream in its order; the back
// chunks are the second half in the opposite order.
class HeadExchange {
 public:
  HeadExchange(const Documents& documents, const at::Tensor& q_TNH)
      : part_(*documents.part), head_dim_(q_TNH.size(2)), options_(q_TNH.options()) {}

  DealtHeads deal(const at::Tensor& x_TNH) const { return {x_TNH.size(1), part_.size}; }

  // This rank's heads of all tokens, of each tensor: views of one, charged to communication.
  std::vector<at::Tensor> by_heads(const std::vector<at::Tensor>& by_tokens) const {
    const OwnerScope owner(Owner::kCommunication);
    int64_t width = 0;
    for (const at::Tensor& x_TNH : by_tokens) width += deal(x_TNH).count;
    const at::Tensor stream = at::empty({2 * half_tokens(), width, head_dim_}, options_);
    const at::Tensor backs = empty_half(width);
    for (const int which : {0, 1}) {
      const at::Tensor sent_PCwH = empty_half(width).view({part_.size, -1, width, head_dim_});
      for (int rank = 0; rank < part_.size; ++rank) pack(sent_PCwH[rank], by_tokens, which, rank);
      const at::Tensor received = which == 0 ? stream.narrow(0, 0, half_tokens()) : backs;
      part_.exchange->all_to_all(received.view({-1}), sent_PCwH.view({-1}))->wait();
    }
    for (int rank = 0; rank < part_.size; ++rank)
      back_chunk(stream, rank).copy_(chunk(backs, rank));
    return split(stream, by_tokens);
  }

  // The inverse: adds to each tensor, [T, N, H], what the ranks have for this rank's tokens, [U, n,
  // H] of them. Heads that several ranks have are summed.
  void add_by_tokens(const std::vector<at::Tensor>& by_tokens,
                     const std::vector<at::Tensor>& by_heads) const {
    const OwnerScope owner(Owner::kCommunication);
    int64_t width = 0;
    for (const at::Tensor& x_UnH : by_heads) width += x_UnH.size(1);
    for (const int which : {0, 1}) {
      const at::Tensor sent = empty_half(width), received = empty_half(width);
      for (int rank = 0; rank < part_.size; ++rank) {
        int64_t head = 0;
        for (const at::Tensor& x_UnH : by_heads) {
          chunk(sent, rank).narrow(1, head, x_UnH.size(1)).copy_(chunk_of(x_UnH, rank, which));
          head += x_UnH.size(1);
        }
      }
      part_.exchange->all_to_all(received.view({-1}), sent.view({-1}))->wait();
      for (int rank = 0; rank < part_.size; ++rank)
        unpack(by_tokens, chunk(received, rank), which, rank);
    }
  }

 private:
  int64_t half_tokens() const { return part_.size * part_.chunk_tokens; }

  at::Tensor empty_half(int64_t width) const {
    return at::empty({half_tokens(), width, head_dim_}, options_);
  }
  at::Tensor chunk(const at::Tensor& x, int64_t index) const {
    return x.narrow(0, index * part_.chunk_tokens, part_.chunk_tokens);
  }
  at::Tensor chunk_of(const at::Tensor& x_UnH, int rank, int which) const {
    return chunk(x_UnH, part_.chunk(rank, which));
  }
  at::Tensor back_chunk(const at::Tensor& x_UwH, int rank) const {
    return chunk_of(x_UwH, rank, 1);
  }

  // Heads of `rank` of a chunk's tokens.
  void pack(const at::Tensor& sent_CwH, const std::vector<at::Tensor>& by_tokens, int which,
            int rank) const {
    int64_t head = 0;
    for (const at::Tensor& x_TNH : by_tokens) {
      const at::Tensor part = deal(x_TNH).of_rank(chunk(x_TNH, which), rank);
      sent_CwH.narrow(1, head, part.size(1)).copy_(part);
      head += part.size(1);
    }
  }

  void unpack(const std::vector<at::Tensor>& by_tokens, const at::Tensor& received_CwH, int which,
              int rank) const {
    int64_t head = 0;
    for (const at::Tensor& x_TNH : by_tokens) {
      at::Tensor part = deal(x_TNH).of_rank(chunk(x_TNH, which), rank);
      part.add_(received_CwH.narrow(1, head, part.size(1)));
      head += part.size(1);
    }
  }

  std::vector<at::Tensor> split(const at::Tensor& stream_UwH,
                                const std::vector<at::Tensor>& like) const {
    std::vector<at::Tensor> parts;
    int64_t head = 0;
    for (const at::Tensor& x_TNH : like) {
      parts.push_back(stream_UwH.narrow(1, head, deal(x_TNH).count));
      head += deal(x_TNH).count;
    }
    return parts;
  }

  const StreamPart& part_;
  int64_t head_dim_;
  at::TensorOptions options_;
};

}  // namespace

bool can_deal_heads(int64_t num_heads, int64_t num_kv_heads, int size) {
  return num_heads % size == 0 && (num_kv_heads % size == 0 || size % num_kv_heads == 0);
}

void ulysses_attention_out(const at::Tensor& out_TNH, const at::Tensor& lse,
                           const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const Documents& documents, int64_t window) {
  TORCH_CHECK(can_deal_heads(q_TNH.size(1), k_TKH.size(1), documents.part->size), "no way to deal ",
              q_TNH.size(1), " and ", k_TKH.size(1), " heads to ", documents.part->size, " ranks");
  const HeadExchange exchange(documents, q_TNH);
  const std::vector<at::Tensor> own = exchange.by_heads({q_TNH, k_TKH, v_TKH});
  const AttentionSums sums = make_attention_sums(own[0]);
  add_attention_(sums, {own[0], own[1], own[2], attention_spans(documents.cu_seqlens), window});
  lse.view(sums.lse_NT.sizes()).copy_(sums.lse_NT);
  exchange.add_by_tokens({out_TNH.zero_()}, {sums.out_TNH});
}

void ulysses_attention_backward_out(const AttentionGradients& grads, const at::Tensor& grad_out_TNH,
                                    const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                    const at::Tensor& v_TKH, const at::Tensor& out_TNH,
                                    const at::Tensor& lse, const Documents& documents,
                                    int64_t window) {
  const HeadExchange exchange(documents, q_TNH);
  const std::vector<at::Tensor> own =
      exchange.by_heads({q_TNH, k_TKH, v_TKH, out_TNH, grad_out_TNH});
  const auto zeros_like = [](const at::Tensor& x) {
    return at::zeros(x.sizes(), x.options().dtype(at::kFloat));
  };
  const AttentionGradients sums{zeros_like(own[0]), zeros_like(own[1]), zeros_like(own[2])};
  const at::Tensor lse_nU = lse.view({own[0].size(1), own[0].size(0)});
  add_attention_gradients_(sums, {own[4], own[3], lse_nU},
                           {own[0], own[1], own[2], attention_spans(documents.cu_seqlens), window});
  // Heads that several ranks have are summed in float32.
  const auto sum_of = [&](const at::Tensor& grad) {
    const bool wide = grad.scalar_type() == at::kFloat || !exchange.deal(grad).are_shared();
    return wide ? grad.zero_() : zeros_like(grad);
  };
  const at::Tensor grad_k = sum_of(grads.k_TKH), grad_v = sum_of(grads.v_TKH);
  exchange.add_by_tokens({grads.q_TNH.zero_(), grad_k, grad_v},
                         {sums.q_TNH, sums.k_TKH, sums.v_TKH});
  if (grad_k.is_same(grads.k_TKH)) return;
  grads.k_TKH.copy_(grad_k);
  grads.v_TKH.copy_(grad_v);
}

}  // namespace tessera
