#include "worker/kernels/cuda/rows.h"

#include "worker/kernels/cuda/device_block.cuh"
#include "worker/kernels/cuda/launches.h"

namespace tessera::cuda {
namespace {

template <typename T>
bool fits(FlatRows<T> rows) {
  return is_aligned(rows.data, 16) && rows.stride * sizeof(T) % 16 == 0;
}
template <typename T>
bool fits(TokenRows<T> rows) {
  return is_aligned(rows.data, 16) && rows.token_stride * sizeof(T) % 16 == 0 &&
         rows.head_stride * sizeof(T) % 16 == 0;
}
template <typename T>
bool fits_width(int64_t width) {
  return width * sizeof(T) % 16 == 0;
}

template <int kLanes, typename T>
__global__ void rms_norm_kernel(TokenRows<T> y, TokenRows<const T> x, const T* weight, float eps,
                                int64_t width) {
  rms_norm_row<kLanes>(DeviceBlock{}, y[blockIdx.x], x[blockIdx.x], weight, eps, width);
}

// A block takes the rows of a part, one after the other.
template <int kLanes, typename T>
__global__ void rms_norm_backward_kernel(RmsNormGradients<T> grads, TokenRows<const T> grad_y,
                                         TokenRows<const T> x, const T* weight,
                                         TokenRows<const T> residual, float eps, int64_t num_rows,
                                         int64_t width) {
  const int64_t first = blockIdx.x * grads.rows_a_part;
  const int64_t last = min(first + grads.rows_a_part, num_rows);
  float* const partial = grads.weight == nullptr ? nullptr : grads.partial + blockIdx.x * width;
  for (int64_t row = first; row < last; ++row) {
    rms_norm_backward_row<kLanes>(DeviceBlock{}, grads.x[row], partial, row == first, grad_y[row],
                                  x[row], weight,
                                  residual.data == nullptr ? nullptr : residual[row], eps, width);
  }
}

// A thread a column; parts in their order.
__global__ void add_parts_kernel(float* total, const float* parts, int64_t num_parts,
                                 int64_t width) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= width) return;
  float sum = total[column];
  for (int64_t part = 0; part < num_parts; ++part) sum += parts[part * width + column];
  total[column] = sum;
}

template <int kLanes, typename T>
__global__ void rotate_kernel(TokenRows<T> y, TokenRows<const T> x, FlatRows<const T> cosine,
                              FlatRows<const T> sine, bool back, int64_t half) {
  const int64_t token = blockIdx.x;
  rotate_token<kLanes>(DeviceBlock{}, y, x, token * x.num_heads, cosine[token], sine[token], back,
                       half);
}

template <int kLanes, typename T>
__global__ void swiglu_kernel(FlatRows<T> h, FlatRows<const T> gate, FlatRows<const T> up,
                              int64_t width) {
  const int64_t row = blockIdx.x;
  swiglu_row<kLanes>(DeviceBlock{}, h[row], gate[row], up[row], width);
}

template <int kLanes, typename T>
__global__ void swiglu_backward_kernel(FlatRows<T> grad_gate, FlatRows<T> grad_up, FlatRows<T> h,
                                       FlatRows<const T> grad_h, FlatRows<const T> gate,
                                       FlatRows<const T> up, int64_t width) {
  const int64_t row = blockIdx.x;
  swiglu_backward_row<kLanes>(DeviceBlock{}, grad_gate[row], grad_up[row],
                              h.data == nullptr ? nullptr : h[row], grad_h[row], gate[row], up[row],
                              width);
}

}  // namespace

template <typename T>
void rms_norm(void* stream, TokenRows<T> y, TokenRows<const T> x, const T* weight, float eps,
              int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  const bool wide = fits(y) && fits(x) && is_aligned(weight, 16) && fits_width<T>(width);
  by_lanes<T>(wide, [&](auto lanes) {
    rms_norm_kernel<lanes>
        <<<num_rows, threads_for(width / lanes), 0, static_cast<cudaStream_t>(stream)>>>(
            y, x, weight, eps, width);
  });
  check_launch("rms_norm");
}

template <typename T>
void rms_norm_backward(void* stream, const RmsNormGradients<T>& grads, TokenRows<const T> grad_y,
                       TokenRows<const T> x, const T* weight, TokenRows<const T> residual,
                       float eps, int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  const auto on = static_cast<cudaStream_t>(stream);
  const int64_t parts = blocks_of(num_rows, grads.rows_a_part);
  const bool wide = fits(grads.x) && fits(grad_y) && fits(x) && is_aligned(weight, 16) &&
                    fits(residual) && fits_width<T>(width);
  by_lanes<T>(wide, [&](auto lanes) {
    rms_norm_backward_kernel<lanes><<<parts, threads_for(width / lanes), 0, on>>>(
        grads, grad_y, x, weight, residual, eps, num_rows, width);
  });
  if (grads.weight != nullptr) {
    add_parts_kernel<<<blocks_of(width, kWarp), kWarp, 0, on>>>(grads.weight, grads.partial, parts,
                                                                width);
  }
  check_launch("rms_norm_backward");
}

template <typename T>
void rotate(void* stream, TokenRows<T> y, TokenRows<const T> x, FlatRows<const T> cosine,
            FlatRows<const T> sine, bool back, int64_t num_tokens, int64_t half) {
  if (num_tokens == 0) return;
  const bool wide = fits(y) && fits(x) && fits(cosine) && fits(sine) && fits_width<T>(half);
  by_lanes<T>(wide, [&](auto lanes) {
    rotate_kernel<lanes><<<num_tokens, threads_for(x.num_heads * half / lanes), 0,
                           static_cast<cudaStream_t>(stream)>>>(y, x, cosine, sine, back, half);
  });
  check_launch("rotate");
}

template <typename T>
void swiglu(void* stream, FlatRows<T> h, FlatRows<const T> gate, FlatRows<const T> up,
            int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  const bool wide = fits(h) && fits(gate) && fits(up) && fits_width<T>(width);
  by_lanes<T>(wide, [&](auto lanes) {
    swiglu_kernel<lanes>
        <<<num_rows, threads_for(width / lanes), 0, static_cast<cudaStream_t>(stream)>>>(h, gate,
                                                                                         up, width);
  });
  check_launch("swiglu");
}

template <typename T>
void swiglu_backward(void* stream, FlatRows<T> grad_gate, FlatRows<T> grad_up, FlatRows<T> h,
                     FlatRows<const T> grad_h, FlatRows<const T> gate, FlatRows<const T> up,
                     int64_t num_rows, int64_t width) {
  if (num_rows == 0) return;
  const bool wide = fits(grad_gate) && fits(grad_up) && fits(h) && fits(grad_h) && fits(gate) &&
                    fits(up) && fits_width<T>(width);
  by_lanes<T>(wide, [&](auto lanes) {
    swiglu_backward_kernel<lanes>
        <<<num_rows, threads_for(width / lanes), 0, static_cast<cudaStream_t>(stream)>>>(
            grad_gate, grad_up, h, grad_h, gate, up, width);
  });
  check_launch("swiglu_backward");
}

#define TESSERA_INSTANTIATE(T)                                                                   \
  template void rms_norm(void*, TokenRows<T>, TokenRows<const T>, const T*, float, int64_t,      \
                         int64_t);                                                               \
  template void rms_norm_backward(void*, const RmsNormGradients<T>&, TokenRows<const T>,         \
                                  TokenRows<const T>, const T*, TokenRows<const T>, float,       \
                                  int64_t, int64_t);                                             \
  template void rotate(void*, TokenRows<T>, TokenRows<const T>, FlatRows<const T>,               \
                       FlatRows<const T>, bool, int64_t, int64_t);                               \
  template void swiglu(void*, FlatRows<T>, FlatRows<const T>, FlatRows<const T>, int64_t,        \
                       int64_t);                                                                 \
  template void swiglu_backward(void*, FlatRows<T>, FlatRows<T>, FlatRows<T>, FlatRows<const T>, \
                                FlatRows<const T>, FlatRows<const T>, int64_t, int64_t);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(Bfloat)

}  // namespace tessera::cuda
