// The kernels on a GPU against their twins on a CPU, through the functions that the engine calls.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "worker/kernels/adamw_ops.h"
#include "worker/kernels/nf4.h"
#include "worker/kernels/quantized_ops.h"
#include "worker/kernels/tensor_ops.h"

namespace tessera {
namespace {

using Tensors = std::vector<at::Tensor>;

class CudaKernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "there is no GPU";
    at::manual_seed(1);
  }

  // Rows that end before the next begins, as parts of a merged product have, unless even.
  at::Tensor draw(at::IntArrayRef sizes, bool even = false) const {
    std::vector<int64_t> wide = sizes.vec();
    if (!even) wide.back() += 8;
    return at::randn(wide).to(GetParam()).narrow(-1, 0, sizes.back());
  }

  // Runs body on copies of the inputs on either device; what it leaves in them must agree.
  void compare(const Tensors& inputs, const std::function<void(const Tensors&)>& body,
               double scale = 1) const {
    Tensors on_cpu, on_gpu;
    for (const at::Tensor& x : inputs) {
      // As clone() would not: the same strides on both.
      at::Tensor there = at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kCUDA));
      on_cpu.push_back(at::empty_strided(x.sizes(), x.strides(), x.options()).copy_(x));
      on_gpu.push_back(there.copy_(x));
    }
    body(on_cpu);
    body(on_gpu);
    const double tolerance = scale * (GetParam() == at::kFloat ? 1e-5 : 1.6e-2);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].is_floating_point()) continue;
      const at::Tensor want = on_cpu[i].to(at::kDouble), got = on_gpu[i].cpu().to(at::kDouble);
      const double off = ((got - want).abs() / (want.abs() + 1)).max().item<double>();
      EXPECT_LE(off, tolerance) << "tensor " << i;
    }
  }
};

TEST_P(CudaKernels, RmsNorm) {
  for (const int64_t width : {64, 128, 1000, 2048, 4097}) {
    for (const bool heads : {false, true}) {
      const std::vector<int64_t> sizes =
          heads ? std::vector<int64_t>{130, 3, width} : std::vector<int64_t>{130, width};
      const Tensors in{draw(sizes), draw({width}, true), draw(sizes),
                       draw(sizes), draw(sizes),         at::zeros({width})};
      compare(in, [](const Tensors& t) { rms_norm_out(t[4], t[0], t[1], 1e-5); });
      const auto backward = [](const at::Tensor& residual, const Tensors& t) {
        rms_norm_backward_out(t[4], t[5], t[2], t[0], t[1], residual, 1e-5);
      };
      compare(in, [&](const Tensors& t) { backward({}, t); }, /*scale=*/4);
      compare(in, [&](const Tensors& t) { backward(t[3], t); }, /*scale=*/4);
    }
  }
}

TEST_P(CudaKernels, Rotate) {
  for (const int64_t half : {8, 32, 50}) {
    const Tensors in{draw({70, 5, 2 * half}), draw({70, half}, true), draw({70, half}, true)};
    for (const bool back : {false, true})
      compare(in, [&](const Tensors& t) { rotate_out(t[0], t[0], t[1], t[2], back); });
  }
}

TEST_P(CudaKernels, SwiGlu) {
  for (const int64_t width : {8, 1111, 8192}) {
    Tensors in;
    for (int i = 0; i < 6; ++i) in.push_back(draw({70, width}));
    compare(in, [](const Tensors& t) { swiglu_out(t[3], t[0], t[1]); });
    compare(in, [](const Tensors& t) { swiglu_backward_out(t[3], t[4], t[5], t[2], t[0], t[1]); });
  }
}

TEST_P(CudaKernels, LabelsAndTheirGradient) {
  for (const int64_t width : {1, 805, 32000, 128256}) {
    const at::Tensor logits = draw({9, width}, true).mul_(4), exps = at::zeros({9, width});
    const Tensors in{
        logits,         exps,          at::randint(width, {9}, at::kLong), at::zeros({7, 9}),
        at::randn({9}), at::randn({9})};
    compare(
        in,
        [](const Tensors& t) {
          // In float32 the logits are overwritten.
          const at::Tensor& exps = t[0].scalar_type() == at::kFloat ? t[0] : t[1];
          const auto stat = [&](int64_t i) { return t[3].select(0, i); };
          label_stats_out({stat(0), stat(1), stat(2), stat(3), stat(4), stat(5), stat(6)}, exps,
                          t[0], t[2]);
          logit_gradient_out(t[0], exps, stat(4), t[2], t[4], t[5]);
        },
        /*scale=*/2);
  }
}

TEST_P(CudaKernels, AdamW) {
  const AdamWStep step{0.5f, 0.999f, 0.1f, 0.01f, 0.03f, 0.3f, 1e-8f};
  for (const int64_t numel : {1, 1000, 100'003}) {
    for (const int64_t begin : {0, 1}) {  // of a segment
      const auto part = [&](at::Tensor x) { return x.narrow(0, begin, numel); };
      const at::Tensor weight = part(at::randn({numel + 1})), grad = part(at::randn({numel + 1}));
      const at::Tensor mean = part(at::randn({numel + 1})), square = part(at::rand({numel + 1}));
      if (GetParam() == at::kFloat) {
        compare({weight, mean, square, grad},
                [&](const Tensors& t) { adamw_(t[0], {t[1], t[2]}, t[3], step); });
      } else {
        compare({weight, mean.to(at::kBFloat16), square.to(at::kBFloat16), grad},
                [&](const Tensors& t) { adamw_bfloat_(t[0], {t[1], t[2]}, t[3], step, 77); });
      }
    }
  }
}

TEST_P(CudaKernels, AdamWInEightBits) {
  const AdamWStep step{0.5f, 0.999f, 0.1f, 0.01f, 0.03f, 0.3f, 1e-8f};
  for (const int64_t numel : {1, 256, 100'003}) {
    const int64_t blocks = (numel + kAdamWBlock - 1) / kAdamWBlock;
    const auto codes = [&] { return at::randint(256, {numel}, at::kByte); };
    compare(
        {at::randn({numel}), codes(), codes(), at::rand({blocks}), at::rand({blocks}),
         at::randn({numel})},
        [&](const Tensors& t) {
          adamw_int8_(t[0], {{t[1], t[2]}, {t[3], t[4]}}, t[5], step);
          // Codes that were made show as weights in the next step.
          adamw_int8_(t[0], {{t[1], t[2]}, {t[3], t[4]}}, t[5], step);
        },
        /*scale=*/100);
  }
}

TEST_P(CudaKernels, Dequantize) {
  for (const Quantization kind :
       {Quantization::kNf4, Quantization::kNf4Nested, Quantization::kInt8}) {
    const QuantizedLayout layout = quantized_layout(kind, 300, 192);
    at::Tensor bytes = at::randint(256, {layout.bytes}, at::kByte);
    const auto floats = [&](int64_t at, int64_t count) {
      bytes.narrow(0, at, 4 * count).view(at::kFloat).copy_(at::rand({count}));
    };
    if (kind == Quantization::kNf4Nested) {
      floats(layout.group_scales, (layout.offset - layout.group_scales) / 4);
      floats(layout.offset, 1);
    } else {
      floats(layout.scales, layout.num_scales);
    }
    for (const int64_t begin : {int64_t{0}, 3 * kNf4Block * layout.width}) {
      const at::Tensor out = at::zeros({layout.numel - begin - 7}, at::kFloat).to(GetParam());
      compare({out, bytes},
              [&](const Tensors& t) { dequantize_out(t[0], t[1], kind, layout, begin); });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaKernels, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace tessera
