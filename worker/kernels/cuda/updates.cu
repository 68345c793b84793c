#include "worker/kernels/cuda/updates.h"

#include "worker/kernels/cuda/device_block.cuh"
#include "worker/kernels/cuda/launches.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

__device__ int64_t thread_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

template <int kLanes>
__global__ void adamw_kernel(float* weights, float* exp_avgs, float* exp_avg_sqs,
                             const float* gradients, AdamWStep step, int64_t parts) {
  const int64_t i = thread_index();
  if (i < parts) adamw_lanes<kLanes>(weights, exp_avgs, exp_avg_sqs, gradients, step, i);
}

__global__ void adamw_bfloat_kernel(float* weights, Bfloat* exp_avgs, Bfloat* exp_avg_sqs,
                                    const float* gradients, AdamWStep step, uint32_t draw,
                                    int64_t count) {
  const int64_t i = thread_index();
  if (i < count) adamw_bfloat_value(weights, exp_avgs, exp_avg_sqs, gradients, step, draw, i);
}

struct Run {
  uint8_t* codes;
  float* scales;
};

__global__ void adamw_int8_kernel(float* weights, Run exp_avgs, Run exp_avg_sqs,
                                  const float* gradients,
                                  const __grid_constant__ DynamicMap signed_map,
                                  const __grid_constant__ DynamicMap unsigned_map, AdamWStep step,
                                  int64_t count) {
  __shared__ float means[kAdamWBlock], squares[kAdamWBlock];
  __shared__ DynamicMap shared_signed, shared_unsigned;
  share(shared_signed, signed_map);
  share(shared_unsigned, unsigned_map);
  const int64_t block = blockIdx.x, begin = block * kAdamWBlock;
  adamw_int8_block(DeviceBlock{}, means, squares, weights + begin,
                   {exp_avgs.codes + begin, exp_avgs.scales + block},
                   {exp_avg_sqs.codes + begin, exp_avg_sqs.scales + block}, gradients + begin,
                   shared_signed, shared_unsigned, step, min(kAdamWBlock, count - begin));
}

}  // namespace

void adamw(void* stream, float* weights, float* exp_avgs, float* exp_avg_sqs,
           const float* gradients, const AdamWStep& step, int64_t count) {
  if (count == 0) return;
  const bool wide = count % 4 == 0 && is_aligned(weights, 16) && is_aligned(exp_avgs, 16) &&
                    is_aligned(exp_avg_sqs, 16) && is_aligned(gradients, 16);
  by_lanes<float>(wide, [&](auto lanes) {
    const int64_t parts = count / lanes;
    adamw_kernel<lanes>
        <<<blocks_of(parts, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            weights, exp_avgs, exp_avg_sqs, gradients, step, parts);
  });
  check_launch("adamw");
}

void adamw_bfloat(void* stream, float* weights, Bfloat* exp_avgs, Bfloat* exp_avg_sqs,
                  const float* gradients, const AdamWStep& step, uint32_t draw, int64_t count) {
  if (count == 0) return;
  adamw_bfloat_kernel<<<blocks_of(count, kThreads), kThreads, 0,
                        static_cast<cudaStream_t>(stream)>>>(weights, exp_avgs, exp_avg_sqs,
                                                             gradients, step, draw, count);
  check_launch("adamw_bfloat");
}

void adamw_int8(void* stream, float* weights, const QuantizedRun& exp_avgs,
                const QuantizedRun& exp_avg_sqs, const float* gradients, const AdamWStep& step,
                int64_t count) {
  if (count == 0) return;
  adamw_int8_kernel<<<blocks_of(count, kAdamWBlock), kThreads, 0,
                      static_cast<cudaStream_t>(stream)>>>(
      weights, {exp_avgs.codes, exp_avgs.scales}, {exp_avg_sqs.codes, exp_avg_sqs.scales},
      gradients, *exp_avgs.map, *exp_avg_sqs.map, step, count);
  check_launch("adamw_int8");
}

}  // namespace tessera::cuda
