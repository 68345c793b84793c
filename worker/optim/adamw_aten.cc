#include "worker/optim/adamw_aten.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "worker/kernels/device_table.h"

namespace tessera {
namespace {

// States that are not float32 are worked on in parts of so many values, to bound what they take as
// float32. Whole blocks.
constexpr int64_t kPartValues = 1 << 20;

// The means become new ones, and the weights follow them.
void update(at::Tensor weights, AdamWMeans means, const at::Tensor& gradients,
            const AdamWStep& step) {
  const at::Tensor gradient = gradients * step.gradient_scale;
  means.exp_avg.lerp_(gradient, step.keep1);
  means.exp_avg_sq.lerp_(gradient.square(), step.keep2);
  const at::Tensor root = means.exp_avg_sq.sqrt().div_(step.root_correction).add_(step.epsilon);
  weights.mul_(step.decay).addcdiv_(means.exp_avg, root, -step.step_size);
}

// As hashed() of worker/kernels/vec_adamw.h, in int64.
at::Tensor hashed(uint32_t first, int64_t count, at::Device device) {
  constexpr int64_t kLow = 0xffffffff;
  at::Tensor x = at::arange(int64_t{first}, int64_t{first} + count,
                            at::TensorOptions(device).dtype(at::kLong));
  x.bitwise_and_(kLow);
  x.bitwise_xor_(x.bitwise_right_shift(16)).mul_(int64_t{0x7feb352d}).bitwise_and_(kLow);
  x.bitwise_xor_(x.bitwise_right_shift(15)).mul_(int64_t{0x846ca68b}).bitwise_and_(kLow);
  return x.bitwise_xor_(x.bitwise_right_shift(16));
}

// `random` in its low 16 bits.
void put_rounded(at::Tensor to, const at::Tensor& values, const at::Tensor& random) {
  const at::Tensor bits = values.view(at::kInt);
  const at::Tensor rounded = (bits + random.bitwise_and(0xffff).to(at::kInt)).bitwise_and_(-65536);
  to.copy_(at::where(values == values, rounded.view(at::kFloat), values));
}

// Half way from each value to the next.
at::Tensor midpoints(const at::Tensor& values) {
  const int64_t count = values.size(0) - 1;
  return (values.narrow(0, 0, count) + values.narrow(0, 1, count)).mul_(0.5);
}

// The states of one sign, as float32 and back. `block` values share a scale.
class Codec {
 public:
  Codec(const DynamicMap& map, at::Device device, int64_t block)
      : map_(map),
        block_(block),
        midpoints_(midpoints(device_table(map.values, device)
                                 .narrow(0, map.zero, DynamicMap::kNumCodes - map.zero))) {}

  at::Tensor decode(const at::Tensor& codes, const at::Tensor& scales) const {
    const at::Tensor values = look_up(map_.values, codes);
    values.view({-1, block_}).mul_(scales.unsqueeze(1));
    return values;
  }

  void encode(at::Tensor codes, at::Tensor scales, const at::Tensor& values) const {
    const at::Tensor sizes = values.abs().view({-1, block_});
    scales.copy_(sizes.amax(1));
    sizes.div_(scales.unsqueeze(1));
    at::Tensor numbers = codes.is_meta() ? at::empty(sizes.sizes(), sizes.options().dtype(at::kInt))
                                         : at::bucketize(sizes, midpoints_, /*out_int32=*/true);
    numbers = numbers.view({-1});
    if (map_.is_signed) {
      const at::Tensor negative = numbers.clamp(1, map_.zero).neg_();
      numbers = at::where(values < 0, negative, numbers);
    }
    codes.copy_(numbers.add_(map_.zero));
  }

 private:
  const DynamicMap& map_;
  int64_t block_;
  at::Tensor midpoints_;
};

// Runs of whole blocks, and what is left at the end, which is a block of its own.
template <typename Body>
void each_part(int64_t numel, const Body& body) {
  const int64_t whole = numel / kAdamWBlock * kAdamWBlock;
  for (int64_t begin = 0; begin < whole; begin += kPartValues)
    body(begin, std::min(kPartValues, whole - begin), kAdamWBlock);
  if (whole < numel) body(whole, numel - whole, numel - whole);
}

}  // namespace

void adamw_by_aten_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
                    const AdamWStep& step) {
  each_part(weights.numel(), [&](int64_t begin, int64_t count, int64_t) {
    update(weights.narrow(0, begin, count), means.narrow(begin, count),
           gradients.narrow(0, begin, count), step);
  });
}

void adamw_bfloat_by_aten_(const at::Tensor& weights, const AdamWMeans& means,
                           const at::Tensor& gradients, const AdamWStep& step, uint32_t draw) {
  each_part(weights.numel(), [&](int64_t begin, int64_t count, int64_t) {
    const AdamWMeans stored = means.narrow(begin, count);
    const AdamWMeans wide{stored.exp_avg.to(at::kFloat), stored.exp_avg_sq.to(at::kFloat)};
    update(weights.narrow(0, begin, count), wide, gradients.narrow(0, begin, count), step);
    const at::Tensor random = hashed(draw + static_cast<uint32_t>(begin), count, weights.device());
    put_rounded(stored.exp_avg, wide.exp_avg, random);
    put_rounded(stored.exp_avg_sq, wide.exp_avg_sq, random.bitwise_right_shift(16));
  });
}

void adamw_int8_by_aten_(const at::Tensor& weights, const AdamWCodes& means,
                         const at::Tensor& gradients, const AdamWStep& step) {
  each_part(weights.numel(), [&](int64_t begin, int64_t count, int64_t block) {
    const AdamWMeans codes = means.codes.narrow(begin, count);
    const AdamWMeans scales = means.scales.narrow(begin / kAdamWBlock, count / block);
    const Codec of_mean(signed_dynamic_map(), weights.device(), block);
    const Codec of_square(unsigned_dynamic_map(), weights.device(), block);
    const AdamWMeans wide{of_mean.decode(codes.exp_avg, scales.exp_avg),
                          of_square.decode(codes.exp_avg_sq, scales.exp_avg_sq)};
    update(weights.narrow(0, begin, count), wide, gradients.narrow(0, begin, count), step);
    of_mean.encode(codes.exp_avg, scales.exp_avg, wide.exp_avg);
    of_square.encode(codes.exp_avg_sq, scales.exp_avg_sq, wide.exp_avg_sq);
  });
}

}  // namespace tessera
