// What rehearsals say, against formulas made by hand. Their peaks against those of runs:
// tests/parity/rehearsal_test.py.
#include "worker/trainer/rehearsal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "proto/spec/rules.h"
#include "tests/worker/data/fixtures.h"
#include "worker/errors.h"
#include "worker/model/config.h"
#include "worker/optim/adamw_state.h"
#include "worker/trainer/plan.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A job on a model of which there is config.json only, and no data.
v1::JobSpec make_spec(const std::string& model, int world_size) {
  v1::JobSpec spec;
  spec.set_name("rehearsal");
  spec.mutable_method()->mutable_sft()->set_max_length(512);
  spec.mutable_model()->set_path((fs::path(TESSERA_MODEL_SHAPES) / model).string());
  spec.mutable_data()->add_train("/nowhere/train.jsonl");
  spec.mutable_training()->set_max_steps(4);
  spec.mutable_training()->set_per_device_train_batch_size(2);
  spec.mutable_training()->set_save_strategy("no");
  spec.mutable_training()->set_output_dir("/nowhere/out");
  spec.mutable_parallelism()->set_num_processes(world_size);
  spec.mutable_resources()->set_cpu_threads(1);
  spec::fill_defaults(spec);
  return spec;
}

v1::Rehearsal rehearse_alone(const v1::JobSpec& spec) {
  RehearsalData data;
  return rehearse(spec, data);
}

int64_t sum_at_peak(const google::protobuf::RepeatedPtrField<v1::OwnerBytes>& owners) {
  return std::accumulate(
      owners.begin(), owners.end(), int64_t{0},
      [](int64_t sum, const v1::OwnerBytes& owner) { return sum + owner.at_peak_bytes(); });
}

// Elements of a block's matrices, by what recompute does with them.
struct BlockMatrices {
  explicit BlockMatrices(const ModelConfig& c) {
    const auto width = static_cast<double>(c.hidden_size);
    const auto heads = static_cast<double>(c.num_heads * c.head_dim);
    const auto kv_heads = static_cast<double>(c.num_kv_heads * c.head_dim);
    qkv = width * (heads + 2 * kv_heads);
    o = heads * width;
    gate_up = 2 * width * static_cast<double>(c.intermediate_size);
    down = gate_up / 2;
  }
  double all() const { return qkv + o + gate_up + down; }
  double qkv, o, gate_up, down;
};

// Of two documents of 512 tokens: what queries see, over both.
constexpr double kTokens = 1024, kLabels = 2 * 511, kPairs = 2 * (512.0 * 513 / 2);

double attention_flops(const ModelConfig& c) {
  // Two products forward; backward makes the scores again and four gradients.
  return 7 * 2 * kPairs * static_cast<double>(c.num_heads * c.head_dim);
}

// Forward, and the gradients of hidden states and weight.
double head_flops(const ModelConfig& c) {
  return 6 * kLabels * static_cast<double>(c.vocab_size * c.hidden_size);
}

TEST(Rehearsal, CountsTheProductsOfAStepThatKeepsAll) {
  v1::JobSpec spec = make_spec("llama3-70b", 1);
  spec.mutable_memory()->set_gradient_checkpointing(false);
  const ModelConfig config = read_model_config(spec.model().path());
  const double block = 6 * kTokens * BlockMatrices(config).all() + attention_flops(config);
  EXPECT_DOUBLE_EQ(rehearse_alone(spec).cost().flops(),
                   static_cast<double>(config.num_layers) * block + head_flops(config));
}

TEST(Rehearsal, CountsWhatRecomputeMakesAgain) {
  const v1::JobSpec spec = make_spec("llama3-70b", 1);
  const ModelConfig config = read_model_config(spec.model().path());
  const BlockMatrices matrices(config);
  // All but attention itself and the last product of the MLP.
  const double again = 2 * kTokens * (matrices.qkv + matrices.o + matrices.gate_up);
  const double block = 6 * kTokens * matrices.all() + again + attention_flops(config);
  EXPECT_DOUBLE_EQ(rehearse_alone(spec).cost().flops(),
                   static_cast<double>(config.num_layers) * block + head_flops(config));
}

TEST(Rehearsal, CountsAllMicrobatchesOfAStep) {
  v1::JobSpec spec = make_spec("qwen3-32b", 2);
  const v1::Rehearsal one = rehearse_alone(spec);
  spec.mutable_training()->set_gradient_accumulation_steps(4);
  const v1::Rehearsal four = rehearse_alone(spec);
  EXPECT_EQ(one.num_tokens(), 1024);
  EXPECT_EQ(four.num_tokens(), 4 * 1024);
  EXPECT_TRUE(four.assumes_full_rows());
  EXPECT_DOUBLE_EQ(four.cost().flops(), 4 * one.cost().flops());
  EXPECT_GT(four.cost().link_bytes(), 3.9 * static_cast<double>(one.cost().link_bytes()));
  EXPECT_GE(four.peak_bytes(), one.peak_bytes());
}

// What comes once a step, in its last backward, is not counted with each microbatch.
TEST(Rehearsal, CountsTheEndOfAStepOnce) {
  v1::JobSpec spec = make_spec("qwen3-32b", 4);
  spec.mutable_memory()->set_sharding("zero1");
  const auto one = static_cast<double>(rehearse_alone(spec).cost().link_bytes());
  spec.mutable_training()->set_gradient_accumulation_steps(4);
  EXPECT_NEAR(static_cast<double>(rehearse_alone(spec).cost().link_bytes()) / one, 1, 1e-4);
  const auto after = static_cast<double>(rehearse_alone(spec).cost().memory_bytes());
  spec.mutable_training()->set_max_grad_norm(0);
  spec.mutable_memory()->set_optimizer_in_backward(true);
  const auto within = static_cast<double>(rehearse_alone(spec).cost().memory_bytes());
  EXPECT_NEAR(within / after, 1, 1e-3);
}

// Elements of the parameters of which rank 0 holds a part, in its shard.
int64_t elements_of_first_rank(const v1::JobSpec& spec) {
  DecoderModel model(read_model_config(spec.model().path()), 512);
  int64_t elements = 0;
  for (const FlatLayout& layout : trainable_layouts(model, spec.parallelism().num_processes())) {
    for (const FlatLayout::Slice& slice : layout.slices_of_rank(0)) elements += slice.numel;
  }
  return elements;
}

// Weights and two states are read and written, gradients read; gradients go to the host, weights
// there and back.
TEST(Rehearsal, CountsAnOffloadedUpdateAsTheCpus) {
  v1::JobSpec spec = make_spec("llama3-70b", 8);
  spec.mutable_resources()->set_device("cuda");
  const v1::StepCost plain = rehearse_alone(spec).cost();
  EXPECT_EQ(plain.cpu_bytes(), 0);
  EXPECT_EQ(plain.host_bytes(), 0);
  spec.mutable_memory()->set_offload_optimizer_device("cpu");
  const v1::StepCost cost = rehearse_alone(spec).cost();
  const int64_t elements = elements_of_first_rank(spec);
  EXPECT_EQ(cost.cpu_bytes(), 7 * 4 * elements);
  EXPECT_EQ(cost.host_bytes(), 3 * 4 * elements);
  EXPECT_LT(cost.memory_bytes(), plain.memory_bytes());
}

// A copy to or from the host is counted as one, and as nothing else.
TEST(Rehearsal, CountsCopiesOnce) {
  v1::JobSpec spec = make_spec("qwen3-32b", 1);
  const v1::StepCost plain = rehearse_alone(spec).cost();
  spec.mutable_memory()->set_offload_optimizer_device("cpu");
  const v1::StepCost states = rehearse_alone(spec).cost();
  EXPECT_EQ(states.memory_bytes(), plain.memory_bytes());
  // Shards go as they lie, with what pads them.
  DecoderModel model(read_model_config(spec.model().path()), 512);
  int64_t elements = 0;
  for (const FlatLayout& layout : trainable_layouts(model, 1)) elements += layout.shard_numel;
  EXPECT_EQ(states.host_bytes(), 3 * 4 * elements);
  spec.mutable_memory()->set_activation_offloading(true);
  const v1::StepCost activations = rehearse_alone(spec).cost();
  EXPECT_EQ(activations.memory_bytes(), plain.memory_bytes());
  const ModelConfig config = read_model_config(spec.model().path());
  // There and back: of each block its input, what its heads attended to, and their float32 sums.
  const int64_t kept = config.hidden_size + config.num_heads * (config.head_dim + 1);
  EXPECT_EQ(activations.host_bytes() - states.host_bytes(),
            2 * 4 * 1024 * kept * config.num_layers);
}

TEST(Rehearsal, CountsWhatComesOverLinks) {
  constexpr int kWorld = 4;
  v1::JobSpec spec = make_spec("llama3-70b", kWorld);
  const ModelConfig config = read_model_config(spec.model().path());
  DecoderModel model(config, 512);
  double elements = 0, of_blocks = 0;  // that come from other ranks when a unit is gathered
  for (const FlatLayout& layout : trainable_layouts(model, kWorld)) {
    const auto others = static_cast<double>((kWorld - 1) * layout.shard_numel);
    elements += others;
    if (layout.name.starts_with("model.layers.")) of_blocks += others;
  }
  // The metrics and the norm of gradients add some thousand numbers to billions.
  const double once = 4 * (elements + elements), again = 4 * of_blocks;
  spec.mutable_memory()->set_reshard_after_forward(false);
  EXPECT_NEAR(static_cast<double>(rehearse_alone(spec).cost().link_bytes()) / once, 1, 1e-4);
  spec.mutable_memory()->set_reshard_after_forward(true);
  EXPECT_NEAR(static_cast<double>(rehearse_alone(spec).cost().link_bytes()) / (once + again), 1,
              1e-4);
}

struct Shape {
  const char* model;
  int64_t num_parameters;
};
class Large : public testing::TestWithParam<Shape> {};

TEST_P(Large, IsRehearsedForManyRanksOfEitherDevice) {
  RehearsalData data;
  for (const char* device : {"cpu", "cuda"}) {
    v1::JobSpec spec = make_spec(GetParam().model, 64);
    spec.mutable_resources()->set_device(device);
    spec.mutable_model()->set_dtype(std::string(device) == "cpu" ? "float32" : "bfloat16");
    spec.mutable_method()->mutable_sft()->set_max_length(4096);
    const v1::Rehearsal rehearsal = rehearse(spec, data);
    EXPECT_EQ(rehearsal.num_parameters(), GetParam().num_parameters);
    EXPECT_EQ(rehearsal.num_trainable_parameters(), GetParam().num_parameters);
    EXPECT_EQ(rehearsal.num_tokens(), 2 * 4096);
    EXPECT_EQ(sum_at_peak(rehearsal.owners()), rehearsal.peak_bytes());
    // Weights, gradients, and two states at least, a 64th of them.
    EXPECT_GT(rehearsal.peak_bytes(), GetParam().num_parameters * 12 / 64);
    EXPECT_EQ(rehearsal.device(), device);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Large,
                         testing::Values(Shape{"llama3-70b", 70'553'706'496},
                                         Shape{"qwen3-32b", 32'762'123'264},
                                         Shape{"llama3.1-405b", 405'853'388'800}));

TEST(Rehearsal, LeavesNothingBehind) {
  RehearsalData data;
  v1::JobSpec spec = make_spec("qwen3-32b", 8), other = make_spec("llama3-70b", 1);
  other.mutable_resources()->set_device("cuda");
  other.mutable_training()->set_gradient_accumulation_steps(3);
  const v1::Rehearsal first = rehearse(spec, data);
  rehearse(other, data);
  EXPECT_EQ(rehearse(spec, data).SerializeAsString(), first.SerializeAsString());
}

TEST(Rehearsal, KeepsNothingAfterAnError) {
  RehearsalData data;
  v1::JobSpec spec = make_spec("qwen3-32b", 2), wrong = spec;
  const v1::Rehearsal right = rehearse(spec, data);
  wrong.mutable_method()->mutable_sft()->set_router_aux_loss_coef(0.5);
  EXPECT_THROW(rehearse(wrong, data), UserError);
  EXPECT_EQ(rehearse(spec, data).SerializeAsString(), right.SerializeAsString());
}

TEST(Rehearsal, AllowsForTheCopyOfASaveThatNobodyHasWritten) {
  v1::JobSpec spec = make_spec("qwen3-32b", 8);
  const v1::Rehearsal without = rehearse_alone(spec);
  spec.mutable_training()->set_save_strategy("steps");
  spec.mutable_training()->set_save_steps(2);
  const int64_t copy = rehearse_alone(spec).peak_bytes() - without.peak_bytes();
  int64_t shards = 0;
  DecoderModel model(read_model_config(spec.model().path()), 512);
  for (const FlatLayout& layout : trainable_layouts(model, 8)) shards += layout.shard_numel;
  EXPECT_EQ(copy, 3 * 4 * shards);
  spec.mutable_training()->set_async_save(false);
  EXPECT_EQ(rehearse_alone(spec).peak_bytes(), without.peak_bytes());
  // A save at the last step has no step beside it.
  spec.mutable_training()->set_async_save(true);
  spec.mutable_training()->set_save_steps(4);
  EXPECT_EQ(rehearse_alone(spec).peak_bytes(), without.peak_bytes());
}

// Norms of the heads are kept wide, and lie on some ranks only.
TEST(Rehearsal, IsOfTheRankThatHoldsMost) {
  constexpr int kWorld = 8;
  v1::JobSpec spec = make_spec("qwen3-32b", kWorld);
  spec.mutable_memory()->set_optimizer_state_dtype("int8");
  DecoderModel model(read_model_config(spec.model().path()), 512);
  std::vector<int64_t> small(kWorld);
  for (const FlatLayout& layout : trainable_layouts(model, kWorld)) {
    for (int rank = 0; rank < kWorld; ++rank) small[rank] += num_small_elements(layout, rank);
  }
  const auto most = std::ranges::max_element(small);
  ASSERT_LT(std::ranges::min(small), *most);
  EXPECT_EQ(rehearse_alone(spec).rank(), most - small.begin());
}

// Rank 0 has the most labels; a document that begins in its first part goes on in rank 1's, which
// therefore gets keys and values that it holds beside its own.
TEST(Rehearsal, IsOfTheRankThatSeesMostKeys) {
  constexpr int kPart = 64;  // tokens of each of the stream's four
  TemporaryFolder folder;
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"hidden_size", 64},
                                 {"intermediate_size", 64},
                                 {"num_hidden_layers", 2},
                                 {"num_attention_heads", 4},
                                 {"num_key_value_heads", 4},
                                 {"vocab_size", 8},
                                 {"max_position_embeddings", 512},
                                 {"rms_norm_eps", 1e-5},
                                 {"tie_word_embeddings", false},
                                 {"hidden_act", "silu"}};
  folder.write("config.json", config.dump());
  std::string lines;
  for (const int length : {2 * kPart, kPart / 2, kPart / 2, kPart}) {
    lines += nlohmann::json{{"input_ids", std::vector<int>(length, 1)}}.dump() + "\n";
  }
  v1::JobSpec spec = make_spec("qwen3-32b", 2);
  spec.mutable_model()->set_path(folder.path().string());
  spec.mutable_model()->set_tokenizer(fixture("qwen").string());
  spec.mutable_data()->clear_train();
  spec.mutable_data()->add_train(folder.write("train.jsonl", lines).string());
  spec.mutable_data()->set_cache_dir((folder.path() / "cache").string());
  spec.mutable_training()->set_per_device_train_batch_size(4);
  spec.mutable_training()->set_train_sampling_strategy("sequential");
  spec.mutable_parallelism()->set_cp_size(2);
  spec.mutable_parallelism()->set_dp_shard_size(1);
  spec.mutable_parallelism()->set_cp_strategy("ring");
  const v1::Rehearsal rehearsal = rehearse_alone(spec);
  EXPECT_FALSE(rehearsal.assumes_full_rows());
  EXPECT_EQ(rehearsal.rank(), 1);
}

TEST(Rehearsal, ChargesAGpuInWholesOfItsAllocator) {
  v1::JobSpec spec = make_spec("qwen3-32b", 2);
  spec.mutable_resources()->set_device("cuda");
  const v1::Rehearsal rehearsal = rehearse_alone(spec);
  for (const v1::OwnerBytes& owner : rehearsal.owners())
    EXPECT_EQ(owner.at_peak_bytes() % 512, 0) << owner.owner();
}

}  // namespace
}  // namespace tessera
