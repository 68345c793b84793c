// A model that scores documents: its parameters, its adapters, and the files these come from.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "worker/errors.h"
#include "worker/model/adapter_files.h"
#include "worker/model/decoder.h"
#include "worker/model/lora.h"
#include "worker/model/stored_weights.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig tiny_config(int64_t num_labels) {
  ModelConfig config;
  config.model_type = "qwen2";
  config.vocab_size = 29;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 1;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  config.tie_word_embeddings = true;
  config.num_labels = num_labels;
  return config;
}

class Classifier : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Zeros for all parameters of `of`, but for those left out.
  WeightFiles store(DecoderModel& of, const std::string& left_out = "") const {
    std::vector<std::pair<std::string, TensorInfo>> infos;
    int64_t bytes = 0;
    for (const Parameter* p : all_parameters(of)) {
      if (p->name == left_out) continue;
      const int64_t numel = c10::multiply_integers(p->shape);
      infos.emplace_back(p->name, TensorInfo{at::kFloat, p->shape, numel});
      bytes += numel * static_cast<int64_t>(sizeof(float));
    }
    std::ofstream file(directory_ / "model.safetensors", std::ios::binary);
    file << lay_out_safetensors(infos).prefix << std::string(bytes, '\0');
    file.close();
    return WeightFiles::open(directory_);
  }

  std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) /
      (std::string("classifier-") +
       ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(Classifier, HasScoresWhereALanguageModelHasItsOutput) {
  DecoderModel model(tiny_config(1), 8), language_model(tiny_config(0), 8);
  ASSERT_EQ(model.head_parameters().size(), 2U);
  EXPECT_EQ(model.head_parameters()[1]->name, "score.weight");
  EXPECT_THAT(model.head_parameters()[1]->shape, ElementsAre(1, 24));
  EXPECT_FALSE(model.tied());
  EXPECT_TRUE(language_model.tied());
}

TEST_F(Classifier, BeginsWithTheScoresOfTheFilesOrWithNewOnes) {
  DecoderModel model(tiny_config(1), 8), language_model(tiny_config(0), 8);
  const Parameter& scores = *model.head_parameters()[1];
  const WeightFiles with = store(model);
  EXPECT_THAT(check_weights(model, with), ElementsAre());
  EXPECT_FALSE(is_new(scores, with));
  const WeightFiles without = store(language_model);
  EXPECT_THAT(check_weights(model, without), ElementsAre());
  EXPECT_TRUE(is_new(scores, without));
  EXPECT_FALSE(is_new(*model.head_parameters()[0], without));
}

TEST_F(Classifier, RefusesTheScoresOfSeveralLabels) {
  DecoderModel model(tiny_config(1), 8), of_two(tiny_config(2), 8);
  const WeightFiles weights = store(of_two);
  try {
    check_weights(model, weights);
    FAIL() << "they were taken";
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "model.path");
    EXPECT_THAT(error.what(), HasSubstr("tensor score.weight has shape [2, 24], must have "
                                        "[1, 24]: one score a document"));
  }
}

TEST_F(Classifier, NewScoresAreDrawnFromTheSeedAsTransformersDoes) {
  ModelConfig config = tiny_config(1);
  config.hidden_size = 4096;
  config.initializer_range = 0.5;
  DecoderModel model(config, 8);
  const Parameter& scores = *model.head_parameters()[1];
  const at::Tensor drawn = at::zeros({4096}), again = at::zeros({96}), other = at::zeros({4096});
  fill_fresh(scores, /*seed=*/7, 0, drawn);
  fill_fresh(scores, /*seed=*/7, 1000, again);
  fill_fresh(scores, /*seed=*/8, 0, other);
  EXPECT_NEAR(drawn.mean().item<double>(), 0, 0.03);
  EXPECT_NEAR(drawn.std().item<double>(), 0.5, 0.03);
  EXPECT_TRUE(drawn.narrow(0, 1000, 96).equal(again));
  EXPECT_FALSE(drawn.equal(other));
}

TEST_F(Classifier, AdaptersLeaveTheScoresTrained) {
  DecoderModel model(tiny_config(1), 8);
  add_adapters(model, {});
  EXPECT_FALSE(model.head_parameters()[0]->trainable);
  EXPECT_TRUE(model.head_parameters()[1]->trainable);
  EXPECT_TRUE(model.head_parameters()[1]->of_adapter);
  EXPECT_FALSE(model.layers()[0]->parameters()[0]->trainable);
}

TEST_F(Classifier, AdapterFilesAreThoseOfPeftsTask) {
  DecoderModel model(tiny_config(1), 8);
  LoraOptions options{.rank = 8, .alpha = 16};
  options.modules_to_save = {"norm"};
  add_adapters(model, options);
  const std::string text = adapter_config_text(model, options, "base");
  const auto config = nlohmann::json::parse(text);
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["modules_to_save"], (nlohmann::json{"norm", "classifier", "score"}));
  std::ofstream(directory_ / kAdapterConfig) << text;
  EXPECT_THAT(read_adapter_config(directory_).modules_to_save, ElementsAre("norm"));
}

}  // namespace
}  // namespace tessera
