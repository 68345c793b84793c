// AdamW by LibTorch's operators: on devices that worker/kernels/adamw_ops.h has no kernels for. The
// same functions, whose contracts hold here but for the device; results differ by rounding.
#pragma once

#include "worker/kernels/adamw_ops.h"

namespace tessera {

void adamw_by_aten_(const at::Tensor& weights, const AdamWMeans& means, const at::Tensor& gradients,
                    const AdamWStep& step);
void adamw_bfloat_by_aten_(const at::Tensor& weights, const AdamWMeans& means,
                           const at::Tensor& gradients, const AdamWStep& step, uint32_t draw);
void adamw_int8_by_aten_(const at::Tensor& weights, const AdamWCodes& means,
                         const at::Tensor& gradients, const AdamWStep& step);

}  // namespace tessera
