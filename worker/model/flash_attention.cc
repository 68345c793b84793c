#include "worker/model/flash_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "worker/kernels/causal_attention.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"
#include "worker/model/kept_attention.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Tokens that the kernel sees before a query; it counts the query's own apart.
std::optional<int64_t> tokens_before(int64_t window) {
  return window > 0 ? std::optional(window - 1) : std::nullopt;
}

struct FlashVarlen : Function<FlashVarlen> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                            const at::Tensor& v_TKH, const at::Tensor& cu_seqlens,
                            int64_t max_length, int64_t window, int64_t kept, double flops) {
    const AttentionOutputs outputs = kept_or_run(kept, [&] {
      if (q_TNH.is_meta()) {
        const AttentionOutputs made{
            at::empty(q_TNH.sizes(), q_TNH.options()),
            at::empty({q_TNH.size(1), q_TNH.size(0)}, q_TNH.options().dtype(at::kFloat))};
        count_kernel(flops, {q_TNH, k_TKH, v_TKH, made.out_TNH});
        return made;
      }
      auto made = at::_flash_attention_forward(
          q_TNH, k_TKH, v_TKH, cu_seqlens, cu_seqlens, max_length, max_length, /*dropout_p=*/0.0,
          /*is_causal=*/true, /*return_debug_mask=*/false, /*scale=*/std::nullopt,
          tokens_before(window), /*window_size_right=*/0);
      return AttentionOutputs{std::get<0>(made), std::get<1>(made)};
    });
    ctx->save_for_backward({q_TNH, k_TKH, v_TKH, outputs.out_TNH, outputs.lse, cu_seqlens});
    ctx->saved_data["max_length"] = max_length;
    ctx->saved_data["window"] = window;
    ctx->saved_data["flops"] = flops;
    return outputs.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &cu_seqlens = saved[5];
    const at::Tensor none;
    if (q.is_meta()) {
      const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
      const variable_list made{like(q), like(k), like(v), none, none, none, none, none};
      allocate_flash_backward_scratch(q, k, cu_seqlens.size(0) - 1);
      // Five products of the kind that forward has two of.
      count_kernel(ctx->saved_data["flops"].toDouble() * 5 / 2,
                   {grads[0], q, k, v, saved[3], made[0], made[1], made[2]});
      return made;
    }
    const int64_t max_length = ctx->saved_data["max_length"].toInt();
    // Without dropout nothing is drawn, and nothing read of the state of draws.
    const at::Tensor no_state = at::empty({2}, q.options().dtype(at::kLong));
    auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
        grads[0].contiguous(), q, k, v, saved[3], saved[4], cu_seqlens, cu_seqlens, max_length,
        max_length, /*dropout_p=*/0.0, /*is_causal=*/true, no_state, no_state,
        /*scale=*/std::nullopt, tokens_before(ctx->saved_data["window"].toInt()),
        /*window_size_right=*/0);
    return {grad_q, grad_k, grad_v, none, none, none, none, none};
  }
};

}  // namespace

void allocate_flash_backward_scratch(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                     int64_t num_documents) {
  const int64_t tokens = q_TNH.size(0) + 128 * num_documents, heads = q_TNH.size(1);
  const int64_t width = (q_TNH.size(2) + 31) / 32 * 32;
  const auto wide = q_TNH.options().dtype(at::kFloat);
  const at::Tensor row_sums = at::empty({heads, tokens}, wide);
  const at::Tensor queries = at::empty({tokens, heads, width}, wide);
  if (k_TKH.size(1) == heads) return;
  const std::vector<int64_t> wide_keys{k_TKH.size(0), heads, k_TKH.size(2)};
  const at::Tensor keys = at::empty(wide_keys, k_TKH.options());
  const at::Tensor values = at::empty(wide_keys, k_TKH.options());
}

bool has_flash_attention(const at::Tensor& q_TNH) {
  return kernel_device(q_TNH) == at::kCUDA &&
         (q_TNH.scalar_type() == at::kBFloat16 || q_TNH.scalar_type() == at::kHalf) &&
         q_TNH.size(2) % 8 == 0 && q_TNH.size(2) <= 256;
}

at::Tensor flash_attention(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const std::vector<int64_t>& cu_seqlens,
                           const AttentionOptions& options) {
  int64_t max_length = 0;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s)
    max_length = std::max(max_length, cu_seqlens[s + 1] - cu_seqlens[s]);
  const at::Tensor bounds = at::tensor(cu_seqlens, at::kInt).to(q_TNH.device());
  return FlashVarlen::apply(q_TNH, k_TKH, v_TKH, bounds, max_length, options.window,
                            reinterpret_cast<int64_t>(options.kept),
                            attention_flops(q_TNH, attention_spans(cu_seqlens), options.window, 2));
}

}  // namespace tessera
