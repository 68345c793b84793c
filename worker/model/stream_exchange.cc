#include "worker/model/stream_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/memory/ledger.h"
#include "worker/model/context.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The front chunks of all ranks are the first half of the stream in its order; the back chunks are
// the second half in the opposite order. `stream` is all of it, 1-D.
at::Tensor front_half(const at::Tensor& stream) { return stream.narrow(0, 0, stream.numel() / 2); }

// The back chunk of rank `r`.
at::Tensor back_chunk(const at::Tensor& stream, const StreamPart& part, int r) {
  const int64_t numel = stream.numel() / part.num_chunks();
  return stream.narrow(0, part.chunk(r, 1) * numel, numel);
}

at::Tensor chunk_of(const at::Tensor& by_rank, const StreamPart& part, int r) {
  const int64_t numel = by_rank.numel() / part.size;
  return by_rank.narrow(0, r * numel, numel);
}

struct GatheredStream : Function<GatheredStream> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x_TKH, int64_t part) {
    ctx->saved_data["part"] = part;
    return gather_stream(x_TKH, *reinterpret_cast<const StreamPart*>(part));
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& part = *reinterpret_cast<const StreamPart*>(ctx->saved_data["part"].toInt());
    return {scatter_stream_sum(grads[0], part), at::Tensor()};
  }
};

}  // namespace

at::Tensor gather_stream(const at::Tensor& x_TKH, const StreamPart& part) {
  const OwnerScope owner(Owner::kCommunication);
  const at::Tensor own = x_TKH.contiguous().view({-1});
  std::vector<int64_t> sizes = x_TKH.sizes().vec();
  sizes[0] = part.num_stream_tokens();
  const at::Tensor whole = at::empty(sizes, x_TKH.options().requires_grad(false));
  const at::Tensor stream = whole.view({-1});
  const at::Tensor backs = at::empty({stream.numel() / 2}, stream.options());
  const int64_t numel = own.numel() / 2;
  const auto front = part.exchange->all_gather(front_half(stream), own.narrow(0, 0, numel));
  const auto back = part.exchange->all_gather(backs, own.narrow(0, numel, numel));
  front->wait();
  back->wait();
  for (int r = 0; r < part.size; ++r) back_chunk(stream, part, r).copy_(chunk_of(backs, part, r));
  return whole;
}

at::Tensor scatter_stream_sum(const at::Tensor& grad_UKH, const StreamPart& part) {
  const OwnerScope owner(Owner::kCommunication);
  const at::Tensor stream = grad_UKH.contiguous().view({-1});
  std::vector<int64_t> sizes = grad_UKH.sizes().vec();
  sizes[0] = 2 * part.chunk_tokens;
  const at::Tensor sum = at::zeros(sizes, stream.options().dtype(at::kFloat));
  const at::Tensor own = sum.view({-1});
  const int64_t numel = own.numel() / 2;
  const auto front = part.exchange->reduce_scatter_add(own.narrow(0, 0, numel), front_half(stream));
  const at::Tensor backs = at::empty({stream.numel() / 2}, stream.options());
  for (int r = 0; r < part.size; ++r) chunk_of(backs, part, r).copy_(back_chunk(stream, part, r));
  const auto back = part.exchange->reduce_scatter_add(own.narrow(0, numel, numel), backs);
  front->wait();
  back->wait();
  return sum.to(grad_UKH.scalar_type());
}

at::Tensor gathered_stream(const at::Tensor& x_TKH, const StreamPart& part) {
  return GatheredStream::apply(x_TKH, reinterpret_cast<int64_t>(&part));
}

}  // namespace tessera
