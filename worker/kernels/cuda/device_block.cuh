// A GPU's block of threads, as block.h wants it: one-dimensional, of whole warps, at most 32.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "worker/kernels/cuda/block.h"

namespace tessera::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kMostThreads = 512;
inline constexpr unsigned kAllLanes = 0xffffffffU;

struct DeviceBlock {
  template <typename Body>
  __device__ void each(int64_t count, const Body& body) const {
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) body(i);
  }

  template <int N, typename Body>
  __device__ Sums<N> sum(int64_t count, const Body& body) const {
    Sums<N> part{};
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const Sums<N> more = body(i);
      for (int n = 0; n < N; ++n) part.of[n] += more.of[n];
    }
    for (int n = 0; n < N; ++n)
      part.of[n] = folded(part.of[n], 0.0f, [](float a, float b) { return a + b; });
    return part;
  }

  template <typename Body>
  __device__ float largest(int64_t count, const Body& body) const {
    const auto larger = [](float a, float b) { return a > b ? a : b; };
    float part = -INFINITY;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) part = larger(part, body(i));
    return folded(part, -INFINITY, larger);
  }

  template <typename Body>
  __device__ void once(const Body& body) const {
    if (threadIdx.x == 0) body();
  }

 private:
  // Of all threads' values, in an order that is the same for every call; all threads call it.
  template <typename Fold>
  __device__ float folded(float value, float none, const Fold& fold) const {
    __shared__ float of_warps[kMostThreads / kWarp];
    for (int step = kWarp / 2; step > 0; step /= 2)
      value = fold(value, __shfl_xor_sync(kAllLanes, value, step));
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = none;
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp)
      value = fold(value, of_warps[warp]);
    __syncthreads();  // before another call writes there
    return value;
  }
};

// A parameter of a kernel, in memory that all threads of a block look values up in at once: each
// may look up another one.
template <typename T>
__device__ void share(T& shared, const T& parameter) {
  static_assert(sizeof(T) % sizeof(uint32_t) == 0);
  for (unsigned i = threadIdx.x; i < sizeof(T) / sizeof(uint32_t); i += blockDim.x)
    reinterpret_cast<uint32_t*>(&shared)[i] = reinterpret_cast<const uint32_t*>(&parameter)[i];
  __syncthreads();
}

// Threads for rows of so many parts: whole warps.
inline int threads_for(int64_t parts) {
  int threads = kWarp;
  while (threads < parts && threads < kMostThreads) threads *= 2;
  return threads;
}

inline int64_t blocks_of(int64_t count, int64_t each) { return (count + each - 1) / each; }

// Of a launch: an error of an earlier kernel shows here, too.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));
}

template <typename T>
bool is_aligned(const T* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Calls body with std::integral_constant<int, lanes>: 16 bytes of T, or one value where `fits` says
// that these cannot be loaded at once.
template <typename T, typename Body>
void by_lanes(bool fits, const Body& body) {
  if (fits) {
    body(std::integral_constant<int, 16 / static_cast<int>(sizeof(T))>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

}  // namespace tessera::cuda
