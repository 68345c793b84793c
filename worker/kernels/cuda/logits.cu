#include "worker/kernels/cuda/logits.h"

#include "worker/kernels/cuda/device_block.cuh"
#include "worker/kernels/cuda/launches.h"

namespace tessera::cuda {
namespace {

// Lanes of both types: of 16 bytes of the narrower one, exps take two loads.
template <typename T>
bool fits(FlatRows<T> rows) {
  return is_aligned(rows.data, 32) && rows.stride % 8 == 0;
}

template <int kLanes, typename T>
__global__ void label_stats_kernel(LabelStatsRows out, FlatRows<float> exps,
                                   FlatRows<const T> logits, const int64_t* labels, int64_t width) {
  const int64_t row = blockIdx.x;
  label_stats_row<kLanes>(DeviceBlock{}, out, row, exps[row], logits[row], labels[row], width);
}

template <int kLanes, typename T>
__global__ void logit_gradient_kernel(FlatRows<T> gradient, FlatRows<const float> exps,
                                      const float* sums_of_exps, const float* of_label,
                                      const float* of_mean, const int64_t* labels, int64_t width) {
  const int64_t row = blockIdx.x;
  logit_gradient_row<kLanes>(DeviceBlock{}, gradient[row], exps[row], sums_of_exps[row],
                             of_label[row], of_mean == nullptr ? 0.0f : of_mean[row], labels[row],
                             width);
}

}  // namespace

template <typename T>
void label_stats(void* stream, const LabelStatsRows& out, FlatRows<float> exps,
                 FlatRows<const T> logits, const int64_t* labels, int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  by_lanes<T>(fits(exps) && fits(logits) && width % 8 == 0, [&](auto lanes) {
    label_stats_kernel<lanes>
        <<<num_rows, threads_for(width / lanes), 0, static_cast<cudaStream_t>(stream)>>>(
            out, exps, logits, labels, width);
  });
  check_launch("label_stats");
}

template <typename T>
void logit_gradient(void* stream, FlatRows<T> gradient, FlatRows<const float> exps,
                    const float* sums_of_exps, const float* of_label, const float* of_mean,
                    const int64_t* labels, int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  by_lanes<T>(fits(exps) && fits(gradient) && width % 8 == 0, [&](auto lanes) {
    logit_gradient_kernel<lanes>
        <<<num_rows, threads_for(width / lanes), 0, static_cast<cudaStream_t>(stream)>>>(
            gradient, exps, sums_of_exps, of_label, of_mean, labels, width);
  });
  check_launch("logit_gradient");
}

#define TESSERA_INSTANTIATE(T)                                                                \
  template void label_stats(void*, const LabelStatsRows&, FlatRows<float>, FlatRows<const T>, \
                            const int64_t*, int64_t, int64_t);                                \
  template void logit_gradient(void*, FlatRows<T>, FlatRows<const float>, const float*,       \
                               const float*, const float*, const int64_t*, int64_t, int64_t);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(Bfloat)

}  // namespace tessera::cuda
