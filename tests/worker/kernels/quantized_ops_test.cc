// Codes, scales and values against those of bitsandbytes (make_quantized_fixture.py).
#include "worker/kernels/quantized_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "worker/kernels/cpu_kernels.h"
#include "worker/kernels/dynamic_map.h"
#include "worker/kernels/nf4.h"
#include "worker/kernels/stand_in.h"
#include "worker/kernels/work.h"
#include "worker/memory/ledger.h"
#include "worker/model/safetensors.h"

namespace tessera {
namespace {

at::Tensor fixture(const std::string& name) {
  static const SafetensorsFile file = SafetensorsFile::open(TESSERA_TEST_FIXTURE, "fixture");
  const TensorInfo& info = file.tensors().at(name);
  const auto dtype = info.dtype == at::kBFloat16 ? at::kFloat : info.dtype;
  at::Tensor values = at::empty(info.shape, at::TensorOptions(dtype));
  file.read(name, 0, values);
  return values;
}

// The bytes of a matrix, all made at once.
at::Tensor bytes_of(const at::Tensor& values, Quantization kind) {
  const QuantizedLayout layout = quantized_layout(kind, values.size(0), values.size(1));
  const at::Tensor bytes = at::zeros({layout.bytes}, at::kByte);
  auto* data = bytes.mutable_data_ptr<uint8_t>();
  const float* from = values.const_data_ptr<float>();
  if (kind == Quantization::kInt8) {
    quantize_int8(from, values.size(0), values.size(1), reinterpret_cast<int8_t*>(data),
                  reinterpret_cast<float*>(data + layout.scales));
    return bytes;
  }
  const at::Tensor scales = at::empty({layout.num_scales}, at::kFloat);
  quantize_nf4(from, values.numel(), data, scales.mutable_data_ptr<float>());
  if (kind == Quantization::kNf4) {
    std::memcpy(data + layout.scales, scales.const_data_ptr(), scales.nbytes());
  } else {
    nest_scales(scales, data + layout.scales, reinterpret_cast<float*>(data + layout.group_scales),
                reinterpret_cast<float*>(data + layout.offset));
  }
  return bytes;
}

at::Tensor part(const at::Tensor& bytes, int64_t begin, const at::Tensor& like) {
  return bytes.narrow(0, begin, static_cast<int64_t>(like.nbytes())).view(like.scalar_type());
}

at::Tensor numbers(const at::Tensor& bytes, const at::Tensor& values, Quantization kind,
                   at::ScalarType dtype = at::kFloat) {
  const at::Tensor out = at::empty(values.sizes(), at::TensorOptions(dtype));
  dequantize_out(out, bytes, kind, quantized_layout(kind, values.size(0), values.size(1)), 0);
  return out;
}

// The rows of which the fixture has the values.
at::Tensor shown(const at::Tensor& values) {
  return values.narrow(0, 0, fixture("nf4.dequantized").size(0));
}

TEST(QuantizedOps, Nf4IsThatOfBitsandbytes) {
  const at::Tensor values = fixture("values");
  const at::Tensor bytes = bytes_of(values, Quantization::kNf4);
  const QuantizedLayout layout =
      quantized_layout(Quantization::kNf4, values.size(0), values.size(1));
  const at::Tensor codes = fixture("nf4.codes"), scales = fixture("nf4.scales");
  EXPECT_TRUE(part(bytes, 0, codes).equal(codes));
  EXPECT_TRUE(part(bytes, layout.scales, scales).equal(scales));
  EXPECT_TRUE(shown(numbers(bytes, values, Quantization::kNf4)).equal(fixture("nf4.dequantized")));
}

// The CPU build of bitsandbytes finds an 8-bit code with a coarser search, and is one off here and
// there: what it finds is never nearer.
TEST(QuantizedOps, NestedScalesAreThoseOfBitsandbytesOrNearer) {
  const at::Tensor values = fixture("values");
  const at::Tensor bytes = bytes_of(values, Quantization::kNf4Nested);
  const QuantizedLayout layout =
      quantized_layout(Quantization::kNf4Nested, values.size(0), values.size(1));
  const at::Tensor groups = fixture("nested.group_scales"), theirs = fixture("nested.scales"),
                   mean = fixture("nested.mean"), map = fixture("nested.map");
  EXPECT_TRUE(part(bytes, layout.group_scales, groups).equal(groups));
  EXPECT_TRUE(part(bytes, layout.offset, mean).equal(mean));
  EXPECT_TRUE(map.equal(at::from_blob(const_cast<float*>(signed_dynamic_map().values), {256})));
  const at::Tensor ours = part(bytes, layout.scales, theirs);
  const at::Tensor scales = fixture("nf4.scales"), group_of = groups.repeat_interleave(256);
  int num_other = 0;
  for (int64_t i = 0; i < ours.numel(); ++i) {
    const int our_code = ours[i].item<uint8_t>(), their_code = theirs[i].item<uint8_t>();
    num_other += our_code != their_code;
    const float exact = (scales[i].item<float>() - mean.item<float>()) / group_of[i].item<float>();
    EXPECT_LE(std::abs(map[our_code].item<float>() - exact),
              std::abs(map[their_code].item<float>() - exact) + 1e-6f);
    EXPECT_LE(std::abs(our_code - their_code), 1);
  }
  EXPECT_LT(num_other, ours.numel() / 50);
  // With their codes in place of ours the values are theirs.
  part(bytes, layout.scales, theirs).copy_(theirs);
  EXPECT_TRUE(
      shown(numbers(bytes, values, Quantization::kNf4Nested)).equal(fixture("nested.dequantized")));
}

TEST(QuantizedOps, Int8IsThatOfBitsandbytes) {
  const at::Tensor values = fixture("values") + 0.5;
  const at::Tensor bytes = bytes_of(values, Quantization::kInt8);
  const QuantizedLayout layout =
      quantized_layout(Quantization::kInt8, values.size(0), values.size(1));
  const at::Tensor codes = fixture("int8.codes"), scales = fixture("int8.scales");
  EXPECT_TRUE(part(bytes, 0, codes).view({values.size(0), -1}).equal(codes));
  EXPECT_TRUE(part(bytes, layout.scales, scales).equal(scales));
  const at::Tensor difference =
      (shown(numbers(bytes, values, Quantization::kInt8)) - fixture("int8.dequantized")).abs();
  EXPECT_LE(difference.max().item<float>(), 1e-6f * values.abs().max().item<float>());
}

TEST(QuantizedOps, TakesAboutHalfAByteAWeight) {
  const auto bytes = [](Quantization kind) {
    return static_cast<double>(quantized_layout(kind, 4096, 4096).bytes) / (4096.0 * 4096.0);
  };
  EXPECT_NEAR(bytes(Quantization::kNf4), 0.5625, 1e-4);
  EXPECT_NEAR(bytes(Quantization::kNf4Nested), 0.5159, 1e-4);
  EXPECT_NEAR(bytes(Quantization::kInt8), 1.001, 1e-4);
}

TEST(QuantizedOps, PartsFromTheBeginningOfABlockAreThoseOfTheWhole) {
  for (const Quantization kind :
       {Quantization::kNf4, Quantization::kNf4Nested, Quantization::kInt8}) {
    const at::Tensor values = fixture("values");
    const at::Tensor bytes = bytes_of(values, kind), whole = numbers(bytes, values, kind).flatten();
    const int64_t begin = kind == Quantization::kInt8 ? 3 * values.size(1) : 3 * kNf4Block;
    const at::Tensor some = at::empty({1000}, at::kFloat);
    dequantize_out(some, bytes, kind, quantized_layout(kind, values.size(0), values.size(1)),
                   begin);
    EXPECT_TRUE(some.equal(whole.narrow(0, begin, 1000)));
  }
}

// Also on the device of a GPU, whose kernel it is.
TEST(QuantizedOps, TakeNoMemoryBesideTheirOutput) {
  MemoryLedger& ledger = MemoryLedger::install_meta();
  const StandInScope stand_in({.device = at::kCUDA});
  for (const Quantization kind :
       {Quantization::kNf4, Quantization::kNf4Nested, Quantization::kInt8}) {
    const QuantizedLayout layout = quantized_layout(kind, 1 << 15, 1 << 13);
    const at::Tensor bytes =
        at::empty({layout.bytes}, at::TensorOptions(at::kMeta).dtype(at::kByte));
    const at::Tensor out =
        at::empty({layout.numel}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
    ledger.reset_peak();
    const int64_t before = ledger.snapshot().current_bytes;
    WorkCount count;
    const WorkScope scope(count);
    dequantize_out(out, bytes, kind, layout, 0);
    EXPECT_EQ(ledger.snapshot().peak_bytes, before);
    EXPECT_EQ(count.memory_bytes, 2 * layout.numel + layout.bytes);
  }
}

// Some rows are some of the bytes.
TEST(QuantizedOps, CountWhatIsReadOfTheMatrix) {
  const StandInScope stand_in({.device = at::kCPU});
  const QuantizedLayout layout = quantized_layout(Quantization::kInt8, 100, 64);
  const at::Tensor bytes = at::empty({layout.bytes}, at::TensorOptions(at::kMeta).dtype(at::kByte));
  const at::Tensor out = at::empty({10 * 64}, at::TensorOptions(at::kMeta));
  WorkCount count;
  const WorkScope scope(count);
  dequantize_out(out, bytes, Quantization::kInt8, layout, 20 * 64);
  EXPECT_EQ(count.memory_bytes, 4 * 10 * 64 + layout.bytes / 10);
}

TEST(QuantizedOps, BfloatIsTheFloatRounded) {
  for (const Quantization kind : {Quantization::kNf4, Quantization::kInt8}) {
    const at::Tensor values = fixture("values"), bytes = bytes_of(values, kind);
    EXPECT_TRUE(numbers(bytes, values, kind, at::kBFloat16)
                    .equal(numbers(bytes, values, kind).to(at::kBFloat16)));
  }
}

TEST(QuantizedOps, EveryInstructionSetGivesTheSame) {
  const at::Tensor codes = fixture("nf4.codes"), scales = fixture("nf4.scales");
  const int64_t count = fixture("values").numel();
  const auto run = [&](const CpuKernels& kernels) {
    std::vector<float> out(2 * count);
    kernels.of_float.dequantize_nf4(out.data(), codes.const_data_ptr<uint8_t>(),
                                    scales.const_data_ptr<float>(), count);
    kernels.of_float.dequantize_int8(out.data() + count,
                                     reinterpret_cast<const int8_t*>(codes.const_data_ptr()), 0.37f,
                                     codes.numel());
    return out;
  };
  const std::vector<float> expected = run(*cpu_kernels(CpuSet::kBaseline));
  for (const CpuSet set : {CpuSet::kAvx2, CpuSet::kAvx512}) {
    if (const CpuKernels* kernels = cpu_kernels(set)) EXPECT_EQ(run(*kernels), expected);
  }
}

}  // namespace
}  // namespace tessera
