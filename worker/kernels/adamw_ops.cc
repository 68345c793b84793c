#include "worker/kernels/adamw_ops.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>

#include <algorithm>

#include "worker/kernels/cuda_ops.h"
#include "worker/kernels/trace_scope.h"
#include "worker/kernels/work.h"

namespace tessera {
namespace {

// Values that are worth a thread; whole blocks.
constexpr int64_t kGrainValues = 1 << 15;

// All but the gradients are read and written.
void count_update(const at::Tensor& weights, const AdamWMeans& means, const AdamWMeans& scales,
                  const at::Tensor& gradients, bool on_host) {
  const std::initializer_list<at::Tensor> touched{
      weights,           weights,           means.exp_avg,  means.exp_avg,
      means.exp_avg_sq,  means.exp_avg_sq,  scales.exp_avg, scales.exp_avg,
      scales.exp_avg_sq, scales.exp_avg_sq, gradients};
  if (on_host) return count_cpu_kernel(touched);
  count_kernel(/*flops=*/0, touched);
}

}  // namespace

void adamw_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
            const AdamWStep& step, bool on_host) {
  const TraceScope trace("adamw");
  if (weights.is_meta()) return count_update(weights, means, {}, gradients, on_host);
  if (weights.is_cuda()) return cuda::adamw_(weights, means, gradients, step);
  auto* const weight = weights.data_ptr<float>();
  auto* const exp_avg = means.exp_avg.data_ptr<float>();
  auto* const exp_avg_sq = means.exp_avg_sq.data_ptr<float>();
  const auto* const gradient = gradients.const_data_ptr<float>();
  at::parallel_for(0, weights.numel(), kGrainValues, [&](int64_t begin, int64_t end) {
    cpu_kernels().adamw(weight + begin, exp_avg + begin, exp_avg_sq + begin, gradient + begin, step,
                        end - begin);
  });
}

void adamw_bfloat_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
                   const AdamWStep& step, uint32_t draw, bool on_host) {
  const TraceScope trace("adamw");
  if (weights.is_meta()) return count_update(weights, means, {}, gradients, on_host);
  if (weights.is_cuda()) return cuda::adamw_bfloat_(weights, means, gradients, step, draw);
  auto* const weight = weights.data_ptr<float>();
  auto* const exp_avg = static_cast<Bfloat*>(means.exp_avg.data_ptr());
  auto* const exp_avg_sq = static_cast<Bfloat*>(means.exp_avg_sq.data_ptr());
  const auto* const gradient = gradients.const_data_ptr<float>();
  at::parallel_for(0, weights.numel(), kGrainValues, [&](int64_t begin, int64_t end) {
    cpu_kernels().adamw_bfloat(weight + begin, exp_avg + begin, exp_avg_sq + begin,
                               gradient + begin, step, draw + static_cast<uint32_t>(begin),
                               end - begin);
  });
}

void adamw_int8_(const at::Tensor& weights, const AdamWCodes& means, const at::Tensor& gradients,
                 const AdamWStep& step, bool on_host) {
  const TraceScope trace("adamw");
  if (weights.is_meta())
    return count_update(weights, means.codes, means.scales, gradients, on_host);
  if (weights.is_cuda()) return cuda::adamw_int8_(weights, means, gradients, step);
  const auto run = [](const at::Tensor& codes, const at::Tensor& scales, const DynamicMap& map,
                      int64_t block) {
    return QuantizedRun{&map, codes.data_ptr<uint8_t>() + block * kAdamWBlock,
                        scales.data_ptr<float>() + block};
  };
  const int64_t numel = weights.numel(), blocks = at::ceil_div(numel, kAdamWBlock);
  auto* const weight = weights.data_ptr<float>();
  const auto* const gradient = gradients.const_data_ptr<float>();
  at::parallel_for(0, blocks, kGrainValues / kAdamWBlock, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kAdamWBlock, end = std::min(numel, last * kAdamWBlock);
    cpu_kernels().adamw_int8(
        weight + begin, run(means.codes.exp_avg, means.scales.exp_avg, signed_dynamic_map(), first),
        run(means.codes.exp_avg_sq, means.scales.exp_avg_sq, unsigned_dynamic_map(), first),
        gradient + begin, step, end - begin);
  });
}

}  // namespace tessera
