#include "worker/model/flash_span_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "worker/kernels/work.h"
#include "worker/model/flash_attention.h"
#include "worker/model/span_pieces.h"

namespace tessera {
namespace {

// How far a query sees in the kernel's terms, which lets the last query and the last key of a
// sequence stand side by side: so many keys to the left and to the right of that place. None: all.
struct Reach {
  std::optional<int64_t> left, right;

  Reach(const AttentionSpan& span, int64_t window) {
    const int64_t behind = span.offset + span.num_queries - span.num_keys;  // of the last query
    if (span.first_seen(span.num_queries - 1, window) > 0) left = window - 1 - behind;
    if (span.last_seen(0) < span.num_keys) right = behind;
  }
  bool operator==(const Reach&) const = default;
  bool is_causal() const { return right == 0; }
};

// Spans side by side in both tensors, that reach as far: sequences of one call.
struct Call {
  Call(const AttentionSpan& first, const Reach& reach)
      : reach(reach),
        query_row(first.query_row),
        key_row(first.key_row),
        query_bounds{0},
        key_bounds{0} {
    add(first);
  }

  bool continues_with(const AttentionSpan& span, const Reach& its_reach) const {
    return reach == its_reach && span.query_row == query_row + query_bounds.back() &&
           span.key_row == key_row + key_bounds.back();
  }
  void add(const AttentionSpan& span) {
    query_bounds.push_back(query_bounds.back() + static_cast<int>(span.num_queries));
    key_bounds.push_back(key_bounds.back() + static_cast<int>(span.num_keys));
    most_queries = std::max(most_queries, span.num_queries);
    most_keys = std::max(most_keys, span.num_keys);
    spans.push_back(span);
  }

  at::Tensor queries(const at::Tensor& x_TNH) const {
    return x_TNH.narrow(0, query_row, query_bounds.back());
  }
  at::Tensor keys(const at::Tensor& x_UKH) const {
    return x_UKH.narrow(0, key_row, key_bounds.back());
  }
  static at::Tensor on_device(const std::vector<int>& bounds, const at::Tensor& like) {
    return at::tensor(bounds, at::kInt).to(like.device());
  }

  Reach reach;
  int64_t query_row, key_row;
  int64_t most_queries = 0, most_keys = 0;  // of a sequence
  std::vector<int> query_bounds, key_bounds;
  std::vector<AttentionSpan> spans;
};

std::vector<Call> calls_of(const SpanInputs& inputs) {
  std::vector<Call> calls;
  for (const AttentionSpan& span : inputs.spans) {
    const Reach reach(span, inputs.window);
    if (!calls.empty() && calls.back().continues_with(span, reach)) {
      calls.back().add(span);
    } else {
      calls.emplace_back(span, reach);
    }
  }
  return calls;
}

AttentionSums run(const Call& call, const SpanInputs& inputs) {
  const at::Tensor q = call.queries(inputs.q_TNH), k = call.keys(inputs.k_UKH),
                   v = call.keys(inputs.v_UKH);
  const at::Tensor query_bounds = Call::on_device(call.query_bounds, q);
  const at::Tensor key_bounds = Call::on_device(call.key_bounds, q);
  if (q.is_meta()) {
    const AttentionSums made{at::empty(q.sizes(), q.options()),
                             at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat))};
    count_kernel(attention_flops(q, call.spans, inputs.window, 2), {q, k, v, made.out_TNH});
    return made;
  }
  const auto made = at::_flash_attention_forward(
      q, k, v, query_bounds, key_bounds, call.most_queries, call.most_keys, /*dropout_p=*/0.0,
      call.reach.is_causal(), /*return_debug_mask=*/false, /*scale=*/std::nullopt, call.reach.left,
      call.reach.right);
  return {std::get<0>(made), std::get<1>(made)};
}

AttentionGradients run_backward(const Call& call, const AttendedTo& attended,
                                const SpanInputs& inputs) {
  const at::Tensor q = call.queries(inputs.q_TNH), k = call.keys(inputs.k_UKH),
                   v = call.keys(inputs.v_UKH);
  const at::Tensor out = call.queries(attended.out_TNH);
  const at::Tensor grad_out = call.queries(attended.grad_out_TNH);
  const at::Tensor lse = attended.lse_NT.narrow(1, call.query_row, q.size(0)).contiguous();
  const at::Tensor query_bounds = Call::on_device(call.query_bounds, q);
  const at::Tensor key_bounds = Call::on_device(call.key_bounds, q);
  if (q.is_meta()) {
    const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
    const AttentionGradients made{like(q), like(k), like(v)};
    allocate_flash_backward_scratch(q, k, static_cast<int64_t>(call.spans.size()));
    count_kernel(attention_flops(q, call.spans, inputs.window, 5),
                 {grad_out, q, k, v, out, made.q_TNH, made.k_TKH, made.v_TKH});
    return made;
  }
  // Without dropout nothing is drawn, and nothing read of the state of draws.
  const at::Tensor no_state = at::empty({2}, q.options().dtype(at::kLong));
  const auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
      grad_out, q, k, v, out, lse, query_bounds, key_bounds, call.most_queries, call.most_keys,
      /*dropout_p=*/0.0, call.reach.is_causal(), no_state, no_state, /*scale=*/std::nullopt,
      call.reach.left, call.reach.right);
  return {grad_q, grad_k, grad_v};
}

}  // namespace

void add_flash_attention_(const AttentionSums& sums, const SpanInputs& inputs) {
  for (const Call& call : calls_of(inputs)) {
    const AttentionSums made = run(call, inputs);
    merge_(sums, call.query_row, made.out_TNH, made.lse_NT);
  }
}

void add_flash_attention_gradients_(const AttentionGradients& grads, const AttendedTo& attended,
                                    const SpanInputs& inputs) {
  for (const Call& call : calls_of(inputs)) {
    const AttentionGradients made = run_backward(call, attended, inputs);
    call.queries(grads.q_TNH).add_(made.q_TNH);
    call.keys(grads.k_TKH).add_(made.k_TKH);
    call.keys(grads.v_TKH).add_(made.v_TKH);
  }
}

}  // namespace tessera
