// The load-balancing loss of a mixture of experts, over all its layers.
//
// With c[e] the number of times expert e was chosen and p[e] the sum of its probabilities, both
// over the tokens of all layers of experts, and n the number of those (token, layer) pairs, the
// loss is E * sum_e (c[e] / n) * (p[e] / n): least where all experts are chosen alike. Source:
// transformers' load_balancing_loss_func. Padding does not count. The sums run over all ranks, so
// that the loss does not depend on how a microbatch is dealt to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tessera {

class RouterBalance {
 public:
  // Adds up a float64 tensor over ranks, in place.
  using Sum = std::function<void(at::Tensor&)>;

  RouterBalance(int64_t num_experts, int64_t num_experts_per_token)
      : num_experts_(num_experts), num_experts_per_token_(num_experts_per_token) {}
  void set_sum(Sum sum) { sum_ = std::move(sum); }

  // A forward begins. Its first `num_tokens` tokens count. `weight`: what the loss is multiplied by
  // in the loss that backward will run for; with 0 nothing is counted.
  void begin(int64_t num_tokens, double weight);
  // Passes a layer's router logits [T, E] on, and counts them while the forward lasts. Where the
  // layer is run again in backward they are not counted a second time. Their gradient gets what the
  // loss adds to it. `first_token`: where these tokens begin in the stream.
  at::Tensor watch(const at::Tensor& logits_TE, int64_t first_token = 0);
  // The forward is over; collective, where the weight is not 0. Returns the loss, without the
  // weight.
  double finish();

  // Adds the gradient of weight * loss with respect to logits_TE to `grad_TE`; after finish().
  at::Tensor with_gradient(const at::Tensor& grad_TE, const at::Tensor& logits_TE,
                           int64_t first_token) const;

 private:
  void count(const at::Tensor& logits_TE, int64_t first_token);
  int64_t num_counted(const at::Tensor& logits_TE, int64_t first_token) const;

  int64_t num_experts_;
  int64_t num_experts_per_token_;
  Sum sum_;
  int64_t num_tokens_ = 0;
  double weight_ = 0;
  bool open_ = false;
  at::Tensor sums_;      // float64 [2 E + 1]: c, p, n
  at::Tensor gradient_;  // float32 [E]: of weight * loss, by each probability of each token
};

}  // namespace tessera
