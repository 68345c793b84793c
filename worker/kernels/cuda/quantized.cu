#include "worker/kernels/cuda/quantized.h"

#include <algorithm>

#include "worker/kernels/cuda/device_block.cuh"
#include "worker/kernels/cuda/launches.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
// Values of a thread: 16 bytes of bfloat16.
constexpr int kValues = 8;

__device__ int64_t thread_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

template <int kLanes, typename T>
__global__ void dequantize_nf4_kernel(T* out, Nf4Parts parts,
                                      const __grid_constant__ Nf4Tables tables, int64_t begin,
                                      int64_t count) {
  __shared__ Nf4Tables shared;
  share(shared, tables);
  const int64_t i = thread_index();
  if (i * kLanes < count) dequantize_nf4_lanes<kLanes>(out, parts, shared, begin, i, count);
}

template <typename T>
__global__ void dequantize_int8_kernel(T* out, const int8_t* codes, const float* scales, float step,
                                       int64_t begin, int64_t width, int64_t count) {
  const int64_t i = thread_index();
  if (i < count) dequantize_int8_value(out, codes, scales, step, begin, width, i);
}

Nf4Tables make_tables() {
  Nf4Tables tables;
  std::copy_n(kNf4Values, 16, tables.values);
  std::copy_n(signed_dynamic_map().values, DynamicMap::kNumCodes, tables.scales);
  return tables;
}

}  // namespace

template <typename T>
void dequantize_nf4(void* stream, T* out, const Nf4Parts& parts, int64_t begin, int64_t count) {
  if (count == 0) return;
  static const Nf4Tables tables = make_tables();
  const auto run = [&](auto lanes) {
    const int64_t threads = blocks_of(count, lanes);
    dequantize_nf4_kernel<lanes>
        <<<blocks_of(threads, kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            out, parts, tables, begin, count);
  };
  if (is_aligned(out, kValues * sizeof(T))) {
    run(std::integral_constant<int, kValues>{});
  } else {
    run(std::integral_constant<int, 2>{});
  }
  check_launch("dequantize_nf4");
}

template <typename T>
void dequantize_int8(void* stream, T* out, const int8_t* codes, const float* scales, float step,
                     int64_t begin, int64_t width, int64_t count) {
  if (count == 0) return;
  dequantize_int8_kernel<<<blocks_of(count, kThreads), kThreads, 0,
                           static_cast<cudaStream_t>(stream)>>>(out, codes, scales, step, begin,
                                                                width, count);
  check_launch("dequantize_int8");
}

#define TESSERA_INSTANTIATE(T)                                                                   \
  template void dequantize_nf4(void*, T*, const Nf4Parts&, int64_t, int64_t);                    \
  template void dequantize_int8(void*, T*, const int8_t*, const float*, float, int64_t, int64_t, \
                                int64_t);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(Bfloat)

}  // namespace tessera::cuda
