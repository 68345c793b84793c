// AdamW with states in bfloat16 and in 8 bits: against bitsandbytes (make_int8_states.py), on every
// instruction set and by LibTorch's operators.
#include "worker/optim/adamw_state.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/kernels/adamw_ops.h"

namespace tessera {
namespace {

using Line = google::protobuf::Struct;

std::vector<Line> read_fixture() {
  std::vector<Line> lines;
  std::ifstream file(TESSERA_INT8_STATES);
  for (std::string text; std::getline(file, text);) {
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &lines.emplace_back()).ok());
  }
  return lines;
}

at::Tensor numbers(const Line& line, const std::string& key) {
  std::vector<double> values;
  for (const auto& value : line.fields().at(key).list_value().values())
    values.push_back(value.number_value());
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

at::Tensor codes(const Line& line, const std::string& key) {
  return numbers(line, key).to(at::kByte);
}

AdamWCodes zero_codes(int64_t numel) {
  const auto zeros = [](int64_t count, at::ScalarType dtype) {
    return AdamWMeans{at::zeros({count}, dtype), at::zeros({count}, dtype)};
  };
  return {zeros(numel, at::kByte), zeros((numel + kAdamWBlock - 1) / kAdamWBlock, at::kFloat)};
}

QuantizedRun run_of(const AdamWCodes& states, at::Tensor AdamWMeans::* mean,
                    const DynamicMap& map) {
  return {&map, (states.codes.*mean).data_ptr<uint8_t>(), (states.scales.*mean).data_ptr<float>()};
}

// beta 0: the means become the gradient and its square, so that a step does nothing but quantize.
constexpr AdamWStep kQuantize{1, 1, 1, 1, 0, 1, 1};

TEST(DynamicMap, IsBitsandbytes) {
  const Line line = read_fixture().front();
  const at::Tensor is_signed = numbers(line, "signed"), is_unsigned = numbers(line, "unsigned");
  for (int code = 0; code < DynamicMap::kNumCodes; ++code) {
    EXPECT_FLOAT_EQ(signed_dynamic_map().values[code], is_signed[code].item<float>()) << code;
    EXPECT_FLOAT_EQ(unsigned_dynamic_map().values[code], is_unsigned[code].item<float>()) << code;
  }
}

// But for values so close to half way that a product with 1 / scale is not a division by it.
void expect_codes(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor off = found.to(at::kInt) - expected.to(at::kInt);
  EXPECT_LE(off.abs().max().item<int>(), 1);
  EXPECT_LE(off.ne(0).sum().item<int64_t>(), expected.numel() / 200);
}

TEST(Int8States, QuantizeAsBitsandbytes) {
  const std::vector<Line> lines = read_fixture();
  const at::Tensor values = numbers(lines[1], "values");
  const AdamWCodes made = zero_codes(values.numel());
  adamw_int8_(at::zeros_like(values), made, values, kQuantize);
  expect_codes(made.codes.exp_avg, codes(lines[1], "codes"));
  EXPECT_TRUE(made.scales.exp_avg.equal(numbers(lines[1], "scales")));
  adamw_int8_(at::zeros_like(values), made, numbers(lines[2], "values").sqrt(), kQuantize);
  expect_codes(made.codes.exp_avg_sq, codes(lines[2], "codes"));
}

double distance(const DynamicMap& map, int code, double value) {
  return code < 0 || code > 255 ? 1e9 : std::abs(map.values[code] - value);
}

// Sizes of all decades, on every instruction set: no other code's value is nearer.
TEST(Int8States, TakeTheNearestValue) {
  std::vector<float> values;
  for (int i = 0; i < 200'000; ++i) {
    if (i % (kAdamWBlock - 1) == 0) values.push_back(1);  // that a block is scaled by
    values.push_back(static_cast<float>(std::pow(10.0, -8 + 8 * i / 200'000.0)) *
                     (i % 3 == 0 ? -1 : 1));
  }
  values.resize(values.size() / kAdamWBlock * kAdamWBlock);
  const auto numel = static_cast<int64_t>(values.size());
  for (const CpuSet set : {CpuSet::kBaseline, CpuSet::kAvx2, CpuSet::kAvx512}) {
    if (cpu_kernels(set) == nullptr) continue;
    const AdamWCodes made = zero_codes(numel);
    std::vector<float> weights(values.size());
    cpu_kernels(set)->adamw_int8(weights.data(),
                                 run_of(made, &AdamWMeans::exp_avg, signed_dynamic_map()),
                                 run_of(made, &AdamWMeans::exp_avg_sq, unsigned_dynamic_map()),
                                 values.data(), kQuantize, numel);
    for (int64_t i = 0; i < numel; ++i) {
      for (const bool squared : {false, true}) {
        const DynamicMap& map = squared ? unsigned_dynamic_map() : signed_dynamic_map();
        const at::Tensor& codes = squared ? made.codes.exp_avg_sq : made.codes.exp_avg;
        const double value = squared ? values[i] * values[i] : values[i];
        const int code = codes.const_data_ptr<uint8_t>()[i];
        const double others =
            std::min(distance(map, code - 1, value), distance(map, code + 1, value));
        const bool keeps_sign = value < 0 && code == map.zero - 1;
        ASSERT_TRUE(keeps_sign || distance(map, code, value) <= others + 1e-6 * std::abs(value))
            << value;
      }
    }
  }
}

// Each step from the state that bitsandbytes had before it.
TEST(Int8States, FollowBitsandbytes) {
  const std::vector<Line> lines = read_fixture();
  const int64_t numel = numbers(lines[3], "weights").numel();
  AdamWCodes state = zero_codes(numel);
  at::Tensor weights = numbers(lines[3], "weights");
  for (int number = 1; number <= 4; ++number) {
    const Line& after = lines[3 + number];
    adamw_int8_(weights, state, numbers(after, "gradient"),
                {.gradient_scale = 1,
                 .decay = 1 - 1e-2f * 0.1f,
                 .keep1 = 0.1f,
                 .keep2 = 0.05f,
                 .step_size = static_cast<float>(1e-2 / (1 - std::pow(0.9, number))),
                 .root_correction = static_cast<float>(std::sqrt(1 - std::pow(0.95, number))),
                 .epsilon = 1e-8f});
    const at::Tensor wanted = numbers(after, "weights");
    EXPECT_LE((weights - wanted).abs().max().item<float>(), 2e-6) << number;
    const AdamWCodes theirs{{codes(after, "mean"), codes(after, "square")},
                            {numbers(after, "mean_scale"), numbers(after, "square_scale")}};
    for (const auto mean : {&AdamWMeans::exp_avg, &AdamWMeans::exp_avg_sq}) {
      const at::Tensor off = (state.codes.*mean).to(at::kInt) - (theirs.codes.*mean).to(at::kInt);
      EXPECT_LE(off.abs().max().item<int>(), 1);
      EXPECT_LE(off.ne(0).sum().item<int64_t>(), numel / 100);
      EXPECT_LE(((state.scales.*mean) / (theirs.scales.*mean) - 1).abs().max().item<float>(), 1e-6);
    }
    weights = wanted;
    state = theirs;
  }
}

TEST(Int8States, AreTheSameOnEveryInstructionSet) {
  const int64_t numel = 3 * kAdamWBlock + 77;
  const at::Tensor gradient = at::randn({numel}), weights = at::randn({numel});
  const AdamWStep step{0.5f, 0.99f, 0.1f, 0.05f, 0.01f, 0.3f, 1e-8f};
  const auto run = [&](const CpuKernels& kernels, at::Tensor w, const AdamWCodes& state) {
    for (int i = 0; i < 3; ++i) {
      kernels.adamw_int8(w.data_ptr<float>(),
                         run_of(state, &AdamWMeans::exp_avg, signed_dynamic_map()),
                         run_of(state, &AdamWMeans::exp_avg_sq, unsigned_dynamic_map()),
                         gradient.const_data_ptr<float>(), step, numel);
    }
    return w;
  };
  const AdamWCodes state = zero_codes(numel);
  const at::Tensor expected = run(*cpu_kernels(CpuSet::kBaseline), weights.clone(), state);
  for (const CpuSet set : {CpuSet::kAvx2, CpuSet::kAvx512}) {
    const CpuKernels* kernels = cpu_kernels(set);
    if (kernels == nullptr) continue;
    const AdamWCodes other = zero_codes(numel);
    const at::Tensor found = run(*kernels, weights.clone(), other);
    // One set may fuse a product with a sum, the other not: a code is another where it was close.
    EXPECT_LE((found - expected).abs().max().item<float>(), 1e-3);
    EXPECT_LE((other.codes.exp_avg.ne(state.codes.exp_avg)).sum().item<int64_t>(), numel / 50);
  }
}

AdamWMeans bfloat_means(int64_t numel, double value) {
  const auto make = [&] { return at::full({numel}, value, at::kBFloat16); };
  return {make(), make()};
}

// A value between two of bfloat16 becomes either, and on average itself.
TEST(BfloatStates, RoundWithoutBias) {
  const int64_t numel = 1 << 16;
  const double value = 1.0 + 0.3 / 128;  // 0.3 of the way from one to the next
  const at::Tensor gradient = at::full({numel}, value, at::kFloat);
  const AdamWMeans means = bfloat_means(numel, 0);
  adamw_bfloat_(at::zeros({numel}), means, gradient, kQuantize, 7);
  const at::Tensor stored = means.exp_avg.to(at::kDouble);
  EXPECT_TRUE((stored.eq(1.0) | stored.eq(1.0 + 1.0 / 128)).all().item<bool>());
  EXPECT_NEAR(stored.mean().item<double>(), value, 0.01 / 128);
  EXPECT_NEAR(means.exp_avg_sq.to(at::kDouble).mean().item<double>(), value * value, 0.02 / 128);
}

// What rounding to the nearest could not do: 0.999 of a value is nearest to that value.
TEST(BfloatStates, LetTheMeanSquareFall) {
  const int64_t numel = 4096;
  const at::Tensor gradient = at::zeros({numel}), weights = at::zeros({numel});
  const AdamWStep step{1, 1, 0.1f, 0.001f, 0.01f, 1, 1e-8f};
  const AdamWMeans means = bfloat_means(numel, 1.0);
  for (uint32_t i = 0; i < 1000; ++i) adamw_bfloat_(weights, means, gradient, step, i * 77777);
  EXPECT_NEAR(means.exp_avg_sq.to(at::kDouble).mean().item<double>(), std::pow(0.999, 1000), 0.01);
}

// A shard's states for a unit of some large and some small parameters, at any world size.
struct Unit {
  explicit Unit(Collectives& group)
      : matrix{"matrix", {70, 100}},
        vector{"vector", {100}},
        wide{"wide", {9000}},
        last{"last", {7}} {
    unit = std::make_unique<ShardedUnit>("unit",
                                         std::vector<Parameter*>{&vector, &matrix, &last, &wide},
                                         group, reductions, ShardedUnit::Options{});
  }
  Parameter matrix, vector, wide, last;
  ReductionQueue reductions;
  std::unique_ptr<ShardedUnit> unit;
};

// The elements of the vectors, put together from the shards of all ranks.
std::map<std::string, at::Tensor> states_of(int world_size, AdamWStateType type) {
  std::map<std::string, at::Tensor> whole;
  auto groups = make_thread_collectives(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    Unit u(*groups[rank]);
    const FlatLayout& layout = u.unit->layout();
    AdamWState state(*u.unit, rank, {.type = type});
    at::Tensor weights = at::zeros({layout.shard_numel}),
               gradient = at::zeros({layout.shard_numel});
    for (const FlatLayout::Slice& slice : layout.slices_of_rank(rank)) {
      const at::Tensor index = at::arange(slice.entry_begin, slice.entry_begin + slice.numel);
      gradient.narrow(0, slice.shard_begin, slice.numel).copy_((index * 0.37).sin().pow(5));
    }
    for (int64_t step = 1; step <= 3; ++step)
      state.update(weights, gradient, {step, 0.01, 1.0, 0.9, 0.99, 1e-8, 0.1});
    std::vector<FlatShard> vectors = state.vectors();
    vectors.push_back({"weights", weights, layout.used_numel});
    for (const FlatShard& shard : vectors) {
      at::Tensor& target = whole[shard.name];
      if (!target.defined()) target = at::full({shard.numel}, 99, shard.data.scalar_type());
      const int64_t begin = std::min(shard.numel, shard.begin.value_or(rank * shard.data.numel()));
      const int64_t count = std::min(shard.data.numel(), shard.numel - begin);
      target.narrow(0, begin, count).copy_(shard.data.narrow(0, 0, count));
    }
  }
  return whole;
}

// The number of ranks is nothing that a state shows: no block lies on two of them.
TEST(AdamWState, IsTheSameAtEveryWorldSize) {
  for (const AdamWStateType type :
       {AdamWStateType::kFloat32, AdamWStateType::kBfloat16, AdamWStateType::kInt8}) {
    const auto expected = states_of(1, type);
    EXPECT_EQ(expected.size(), type == AdamWStateType::kInt8 ? 7u : 3u);
    for (const int world_size : {2, 3, 5}) {
      const auto found = states_of(world_size, type);
      ASSERT_EQ(found.size(), expected.size());
      for (const auto& [name, values] : expected)
        EXPECT_TRUE(values.equal(found.at(name))) << name << " on " << world_size;
    }
  }
}

TEST(AdamWState, QuantizesAllButSmallParameters) {
  auto group = make_single_collectives();
  Unit u(*group);
  const std::vector<FlatShard> shards =
      AdamWState(*u.unit, 0, {.type = AdamWStateType::kInt8}).vectors();
  int64_t bytes = 0;
  for (const FlatShard& shard : shards) {
    bytes += static_cast<int64_t>(shard.data.nbytes());
    if (shard.name.ends_with(".small")) {
      EXPECT_EQ(shard.numel, 107) << shard.name;
    }
  }
  const int64_t numel = u.unit->layout().numel;
  EXPECT_EQ(bytes, 2 * numel + 2 * 4 * numel / kAdamWBlock + 2 * 4 * 107);
}

}  // namespace
}  // namespace tessera
