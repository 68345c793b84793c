// Adapters on plain and on quantized weights, read from files and sharded over ranks that are
// threads, against one rank that recomputes nothing.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "proto/spec/rules.h"
#include "tests/support/ranks.h"
#include "tests/worker/trainer/tiny_model.h"
#include "worker/model/linear.h"
#include "worker/model/quantized.h"
#include "worker/model/stored_weights.h"
#include "worker/trainer/merged_weights.h"
#include "worker/trainer/parameter_reader.h"

namespace tessera {
namespace {

using testing::make_batch;
using testing::tiny_config;
using testing::train_on;

constexpr double kRounding = 2e-5;

// A directory with a model.safetensors of the tiny model.
class ModelFiles {
 public:
  explicit ModelFiles(bool tied) {
    DecoderModel model(tiny_config(tied), 4);
    std::vector<std::pair<std::string, TensorInfo>> infos;
    std::vector<at::Tensor> values;
    for (const Parameter* p : all_parameters(model)) {
      const int64_t numel = p->numel();
      infos.emplace_back(p->name, TensorInfo{at::kFloat, p->shape, numel});
      const at::Tensor index = at::arange(numel, at::kDouble) + std::ssize(infos) * 1000;
      values.push_back(((index * 0.7).sin() * 0.3 + (p->shape.size() == 1 ? 1 : 0)).to(at::kFloat));
    }
    const SafetensorsLayout layout = lay_out_safetensors(infos);
    std::filesystem::create_directories(directory_);
    std::ofstream file(directory_ / "model.safetensors", std::ios::binary);
    file << layout.prefix;
    for (const at::Tensor& tensor : values)
      file.write(static_cast<const char*>(tensor.const_data_ptr()),
                 static_cast<std::streamsize>(tensor.nbytes()));
  }
  ~ModelFiles() { std::filesystem::remove_all(directory_); }
  WeightFiles open() const { return WeightFiles::open(directory_); }

 private:
  std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) /
      (std::string("peft-") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

struct Options {
  int world_size = 1;
  bool recompute = true, tied = false, dora = false, bfloat = false;
  std::string quantization = "none";
  bool nested = false;
};

v1::JobSpec spec_of(const Options& options) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_memory()->set_gradient_checkpointing(options.recompute);
  spec.mutable_memory()->set_head_chunk_tokens(4);
  if (options.bfloat) spec.mutable_model()->set_dtype("bfloat16");
  v1::Peft& peft = *spec.mutable_peft();
  peft.set_lora_r(3);
  peft.set_lora_dropout(0);
  peft.add_lora_target_modules("all-linear");
  peft.add_lora_modules_to_save("model.norm");
  peft.set_use_dora(options.dora);
  peft.set_quantization(options.quantization);
  peft.set_use_bnb_nested_quant(options.nested);
  spec::fill_defaults(spec);
  return spec;
}

// Runs `body` on every rank of a loaded model, B no longer zero.
void run(const Options& options,
         const std::function<void(TrainableModel&, Collectives&, std::mutex&)>& body) {
  at::set_num_threads(1);
  const ModelFiles files(options.tied);
  const v1::JobSpec spec = spec_of(options);
  std::mutex mutex;
  testing::run_ranks(testing::Backend::kThreads, options.world_size, [&](Collectives& group) {
    TrainableModel trainable = build_model(spec, tiny_config(options.tied), group, at::kCPU);
    const WeightFiles weights = files.open();
    check_weights(*trainable.model, weights);
    load_weights(spec, trainable, weights, group.rank());
    for (const ShardedUnit* unit : trainable.trainable_units()) {
      for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(group.rank())) {
        if (unit->parameter_of(*slice.entry).fresh != Fresh::kZeros) continue;
        const at::Tensor index =
            at::arange(slice.entry_begin, slice.entry_begin + slice.numel, at::kDouble);
        unit->shard().narrow(0, slice.shard_begin, slice.numel).copy_((index * 1.3).sin() * 0.1);
      }
    }
    body(trainable, group, mutex);
  });
}

// Gradients of everything trained, by name, whole.
std::map<std::string, at::Tensor> gradients(const Options& options) {
  std::map<std::string, at::Tensor> whole;
  run(options, [&](TrainableModel& trainable, Collectives& group, std::mutex& mutex) {
    for (int microbatch = group.rank(); microbatch < 6; microbatch += group.size())
      train_on(trainable, make_batch(microbatch));
    const std::lock_guard lock(mutex);
    for (const ShardedUnit* unit : trainable.trainable_units()) {
      for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(group.rank())) {
        at::Tensor& target = whole[slice.entry->name];
        if (!target.defined()) target = at::full({slice.entry->numel}, NAN);
        target.narrow(0, slice.entry_begin, slice.numel)
            .copy_(unit->gradient().narrow(0, slice.shard_begin, slice.numel));
      }
    }
  });
  return whole;
}

class PeftTest : public ::testing::TestWithParam<Options> {};

TEST_P(PeftTest, EveryWayToRunGivesTheGradientsOfThePlainOne) {
  Options options = GetParam();
  options.recompute = false;
  const auto expected = gradients(options);
  EXPECT_TRUE(expected.contains("model.norm.weight"));
  EXPECT_FALSE(expected.contains("model.embed_tokens.weight"));
  for (const int world_size : {1, 2, 3}) {
    for (const bool recompute : {true, false}) {
      options.world_size = world_size;
      options.recompute = recompute;
      const auto found = gradients(options);
      ASSERT_EQ(found.size(), expected.size());
      for (const auto& [name, gradient] : expected) {
        const double scale = gradient.abs().max().item<double>();
        EXPECT_GT(scale, 0) << name;
        const double error = (gradient - found.at(name)).abs().max().item<double>();
        EXPECT_LE(error, (options.bfloat ? 0.05 : kRounding) * scale)
            << name << " at " << world_size << (recompute ? " recomputed" : "");
      }
    }
  }
}

// Merged weights by name, whole.
std::map<std::string, at::Tensor> merged_weights(const Options& options) {
  std::map<std::string, at::Tensor> whole;
  run(options, [&](TrainableModel& trainable, Collectives& group, std::mutex& mutex) {
    MergedWeights merged(trainable, group);
    for (size_t i = 0; i < merged.layouts().size(); ++i) {
      merged.enter(i);
      const FlatLayout& layout = merged.layouts()[i];
      for (const FlatLayout::Slice& slice : layout.slices_of_rank(group.rank())) {
        const at::Tensor values = merged.read(slice.shard_begin, slice.numel);
        const std::lock_guard lock(mutex);
        at::Tensor& target = whole[slice.entry->name];
        if (!target.defined()) target = at::full({slice.entry->numel}, NAN);
        target.narrow(0, slice.entry_begin, slice.numel).copy_(values);
      }
    }
  });
  return whole;
}

double loss_of(TrainableModel& trainable, const Batch& batch) {
  const c10::NoGradGuard no_grad;
  const HeadOutput head = trainable.model->head(trainable.model->forward(batch), batch);
  return -head.logprobs_T.mean().item<double>();
}

TEST_P(PeftTest, TheMergedModelIsTheOneThatWasTrained) {
  const Options options = GetParam();
  const auto at_one = merged_weights(options);
  Options several = options;
  several.world_size = 3;
  const auto at_three = merged_weights(several);
  ASSERT_EQ(at_one.size(), at_three.size());
  for (const auto& [name, values] : at_one)
    EXPECT_LT((values - at_three.at(name)).abs().max().item<double>(), 1e-6) << name;

  const Batch batch = make_batch(1);
  double adapted = 0;
  run(options, [&](TrainableModel& trainable, Collectives&, std::mutex&) {
    adapted = loss_of(trainable, batch);
  });
  v1::JobSpec spec = spec_of(options);
  spec.clear_peft();
  const auto group = make_single_collectives();
  TrainableModel plain = build_model(spec, tiny_config(options.tied), *group, at::kCPU);
  for (const auto& unit : plain.units) {
    for (const FlatEntry& entry : unit->layout().entries)
      unit->shard().narrow(0, entry.offset, entry.numel).copy_(at_one.at(entry.name));
  }
  EXPECT_NEAR(loss_of(plain, batch), adapted, (options.bfloat ? 0.02 : 1e-5) * adapted);
}

std::string name_of(const ::testing::TestParamInfo<Options>& info) {
  const Options& o = info.param;
  return std::string(o.dora ? "Dora" : "Lora") + (o.tied ? "Tied" : "") +
         (o.bfloat ? "Bfloat" : "") + (o.quantization == "none" ? "" : o.quantization) +
         (o.nested ? "Nested" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, PeftTest,
    ::testing::Values(Options{}, Options{.tied = true}, Options{.dora = true},
                      Options{.bfloat = true}, Options{.quantization = "nf4"},
                      Options{.tied = true, .dora = true, .quantization = "nf4", .nested = true},
                      Options{.bfloat = true, .quantization = "nf4", .nested = true},
                      Options{.dora = true, .quantization = "int8"}),
    name_of);

// What a rank holds of quantized matrices is what bitsandbytes makes of them whole, wherever its
// part begins and ends.
TEST(Peft, BytesOfPartsAreThoseOfTheWhole) {
  for (const Quantization kind :
       {Quantization::kNf4, Quantization::kNf4Nested, Quantization::kInt8}) {
    Parameter matrix{"w", {37, 53}};
    matrix.quantization = kind;
    const at::Tensor values = (at::arange(37 * 53, at::kDouble) * 0.37).sin().to(at::kFloat);
    const ElementReader elements = [&](int64_t begin, const at::Tensor& out) {
      out.copy_(values.narrow(0, begin, out.numel()));
    };
    const int64_t bytes = matrix.byte_layout().bytes;
    const at::Tensor whole = at::empty({bytes}, at::kByte);
    read_quantized(matrix, elements, 0, whole);
    for (const int64_t step : {1, 7, 64, 500}) {
      for (int64_t begin = 0; begin < bytes; begin += step) {
        const at::Tensor out = at::empty({std::min(step, bytes - begin)}, at::kByte);
        read_quantized(matrix, elements, begin, out);
        ASSERT_TRUE(out.equal(whole.narrow(0, begin, out.numel()))) << step << " at " << begin;
      }
    }
    matrix.value = whole;
    const double coarse =
        (dequantized(matrix, at::kFloat).flatten() - values).abs().max().item<double>();
    EXPECT_LT(coarse, kind == Quantization::kInt8 ? 0.005 : 0.16);
    EXPECT_TRUE(dequantized_rows(matrix, 5, 9, at::kFloat)
                    .equal(dequantized(matrix, at::kFloat).narrow(0, 5, 9)));
  }
}

// DoRA's first lengths are those of the rows: nothing is changed at first.
TEST(Peft, LengthsOfRowsBeginAsThoseOfTheWeights) {
  for (const char* quantization : {"none", "nf4"}) {
    const ModelFiles files(/*tied=*/false);
    const v1::JobSpec spec = spec_of({.dora = true, .quantization = quantization});
    const auto group = make_single_collectives();
    TrainableModel trainable = build_model(spec, tiny_config(false), *group, at::kCPU);
    const WeightFiles weights = files.open();
    load_weights(spec, trainable, weights, 0);
    for (const auto& layer : trainable.model->layers()) {
      for (const Linear* linear : layer->linears()) {
        const at::Tensor norms =
            at::linalg_vector_norm(linear->dense(at::kFloat), 2, at::OptionalIntArrayRef(1));
        const at::Tensor& lengths = linear->adapter->magnitude.value;
        EXPECT_LT((norms - lengths).abs().max().item<double>(), 1e-6) << linear->name();
      }
    }
  }
}

}  // namespace
}  // namespace tessera
