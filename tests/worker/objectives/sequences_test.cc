#include "worker/objectives/sequences.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "worker/kernels/meta_operators.h"

namespace tessera {
namespace {

Batch two_documents(at::Device device, int64_t num_labels) {
  Batch batch;
  batch.num_sequences = 2;
  batch.num_labels = num_labels;
  batch.label_documents_L = at::zeros({num_labels}, at::TensorOptions(device).dtype(at::kLong));
  return batch;
}

// As a rank of a shared stream may have it, in a rehearsal, too: the others' labels still need its
// part of the sum, and its backward.
TEST(SumLabelsByDocument, TakesNoLabels) {
  register_meta_operators();
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const at::Tensor values_Tk =
        at::zeros({4, 3}, at::TensorOptions(device).dtype(at::kDouble)).requires_grad_();
    const Batch batch = two_documents(device, 0);
    const at::Tensor values_Lk = values_Tk.index_select(0, batch.label_documents_L);
    const at::Tensor sums_Sk = sum_labels_by_document(values_Lk, batch);
    EXPECT_EQ(sums_Sk.sizes(), at::IntArrayRef({2, 3}));
    torch::autograd::backward({sums_Sk.sum()}, {});
    EXPECT_EQ(values_Tk.grad().sizes(), at::IntArrayRef({4, 3}));
    if (!device.is_cpu()) continue;
    EXPECT_EQ(sums_Sk.abs().sum().item<double>(), 0);
  }
}

}  // namespace
}  // namespace tessera
