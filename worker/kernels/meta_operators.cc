#include "worker/kernels/meta_operators.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "worker/kernels/stand_in.h"

namespace tessera {
namespace {

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return at::empty(sizes, self.options());
}

// ATen's looks at the first of what is added, which a rank without labels does not have.
at::Tensor index_add(const at::Tensor& self, int64_t, const at::Tensor&, const at::Tensor&,
                     const at::Scalar&) {
  return at::empty_like(self);
}

at::Tensor& index_add_(at::Tensor& self, int64_t, const at::Tensor&, const at::Tensor&,
                       const at::Scalar&) {
  return self;
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor&,
                                    c10::SymInt num_weights, c10::SymInt, bool) {
  return at::empty({num_weights.expect_int(), grad.size(-1)}, grad.options());
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>&,
                    c10::SymInt minlength) {
  return at::empty({minlength.expect_int()}, self.options().dtype(at::kLong));
}

at::Tensor abs(const at::Tensor& self) { return at::empty_like(self); }

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  return at::empty(at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes()),
                   self.options());
}

at::Tensor& where_out(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor& out) {
  return out;
}

at::Tensor& logical_and_out(const at::Tensor&, const at::Tensor&, at::Tensor& out) { return out; }

void fused_adamw_(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                  at::TensorList, double, double, double, double, double, bool, bool,
                  const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {}

// The blocks of ATen's flash attention on a CPU.
struct CpuFlashBlocks {
  int64_t queries, keys;

  CpuFlashBlocks(const at::Tensor& q, const at::Tensor& k) {
    const int64_t length = q.size(2);
    queries = std::min<int64_t>(length, length >= 768 ? 256 : length >= 192 ? 64 : 32);
    keys = std::min<int64_t>(512, k.size(2));
  }
};

// [B, N, L, H] over memory of [B, L, N, H].
at::Tensor by_token(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

std::tuple<at::Tensor, at::Tensor> cpu_flash_forward(const at::Tensor& q, const at::Tensor& k,
                                                     const at::Tensor&, double, bool,
                                                     const std::optional<at::Tensor>&,
                                                     std::optional<double>) {
  const at::TensorOptions wide = q.options().dtype(at::kFloat);
  at::Tensor out = by_token(q);
  at::Tensor lse = at::empty({q.size(0), q.size(2), q.size(1)}, wide).transpose(1, 2);
  const CpuFlashBlocks blocks(q, k);
  const int64_t threads = num_kernel_threads(q), scores = blocks.queries * blocks.keys;
  const at::Tensor sums = at::empty({threads, scores + blocks.queries * (2 + q.size(3))}, wide);
  const bool narrow = q.scalar_type() != at::kFloat;
  const at::Tensor narrow_scores = at::empty({narrow ? threads : 0, scores}, q.options());
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cpu_flash_backward(
    const at::Tensor&, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor&, const at::Tensor&, double, bool, const std::optional<at::Tensor>&,
    std::optional<double>) {
  at::Tensor grad_q = by_token(q), grad_k = by_token(k), grad_v = by_token(v);
  // Its scratch is in CpuScratchScope.
  return {grad_q, grad_k, grad_v};
}

void add_kernels(torch::Library& library) {
  library.impl("abs", abs);
  library.impl("index_select", index_select);
  library.impl("index_add", index_add);
  library.impl("index_add_", index_add_);
  library.impl("embedding_dense_backward", embedding_dense_backward);
  library.impl("bincount", bincount);
  library.impl("logical_and.out", logical_and_out);
  library.impl("where.self", where);
  library.impl("where.self_out", where_out);
  library.impl("_fused_adamw_", fused_adamw_);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", cpu_flash_forward);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", cpu_flash_backward);
}

}  // namespace

at::Tensor draw_nothing(at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor drawn = at::empty(sizes, options);
  // On a CPU of Intel's ATen draws through MKL, into integers.
  if (on_cpu(drawn) && __builtin_cpu_is("intel")) at::empty(sizes, options.dtype(at::kInt));
  return drawn;
}

void register_meta_operators() {
  static torch::Library* const library = [] {
    // Never destroyed: a dispatcher that is torn down at exit would be told.
    auto* made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                                    __LINE__);
    add_kernels(*made);
    return made;
  }();
  (void)library;
}

}  // namespace tessera
