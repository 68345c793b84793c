// Attention on CUDA in 16-bit types, all documents in one call of LibTorch's flash kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/kernels/causal_attention.h"
#include "worker/model/attention.h"
#include "worker/model/kept_attention.h"

namespace tessera {

// Whether flash_attention() takes such queries: on CUDA, of 16 bits, with heads of at most 256
// values in eights.
bool has_flash_attention(const at::Tensor& q_TNH);

// Makes what the kernel's backward takes beside its results, in LibTorch's mha_varlen_bwd, and
// drops it: where nothing is computed.
void allocate_flash_backward_scratch(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                                     int64_t num_documents);

// As attend(), without dropout.
at::Tensor flash_attention(const at::Tensor& q_TNH, const at::Tensor& k_TKH,
                           const at::Tensor& v_TKH, const std::vector<int64_t>& cu_seqlens,
                           const AttentionOptions& options);

}  // namespace tessera
