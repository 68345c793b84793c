// Linked in place of cuda_ops.cc in a build without TESSERA_CUDA.
#include <stdexcept>

#include "worker/kernels/cuda_ops.h"
#include "worker/no_cuda.h"

namespace tessera::cuda {
namespace {

using at::Tensor;

[[noreturn]] void refuse() { throw std::runtime_error(kNoCuda); }

}  // namespace

void rms_norm_out(const Tensor&, const Tensor&, const Tensor&, double) { refuse(); }
void rms_norm_backward_out(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&, const Tensor&, const Tensor&, double, int64_t) {
  refuse();
}
void rotate_out(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool) { refuse(); }
void swiglu_out(const Tensor&, const Tensor&, const Tensor&) { refuse(); }
void swiglu_backward_out(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&) {
  refuse();
}
void label_stats_out(const LabelStatsOut&, const Tensor&, const Tensor&, const Tensor&) {
  refuse();
}
void logit_gradient_out(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&) {
  refuse();
}
void adamw_(const Tensor&, const AdamWMeans&, const Tensor&, const AdamWStep&) { refuse(); }
void adamw_bfloat_(const Tensor&, const AdamWMeans&, const Tensor&, const AdamWStep&, uint32_t) {
  refuse();
}
void adamw_int8_(const Tensor&, const AdamWCodes&, const Tensor&, const AdamWStep&) { refuse(); }
void dequantize_out(const Tensor&, const Tensor&, Quantization, const QuantizedLayout&, int64_t) {
  refuse();
}

}  // namespace tessera::cuda
