#include "worker/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "worker/errors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kSizes =
    R"("vocab_size": 61, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 4,
       "num_attention_heads": 4)";

class Config : public testing::Test {
 protected:
  Config() {
    std::string name = fs::temp_directory_path() / "config_test.XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  ~Config() override { fs::remove_all(directory_); }

  // config.json with the sizes above and `fields`.
  ModelConfig read(const std::string& type, const std::string& fields = "") {
    std::ofstream(directory_ / "config.json") << R"({"model_type": ")" << type << "\", " << kSizes
                                              << (fields.empty() ? "" : ", ") << fields << "}";
    return read_model_config(directory_);
  }
  std::string error_of(const std::string& type, const std::string& fields) {
    try {
      read(type, fields);
    } catch (const UserError& error) {
      EXPECT_EQ(error.field(), "model.path");
      EXPECT_THAT(error.what(), HasSubstr((directory_ / "config.json").string()));
      return error.what();
    }
    return "none";
  }

  fs::path directory_;
};

TEST_F(Config, TakesWhatTransformersTakesForAFieldThatIsAbsent) {
  EXPECT_EQ(read("llama").num_kv_heads, 4);
  EXPECT_EQ(read("llama").head_dim, 8);
  EXPECT_EQ(read("mistral", R"("num_key_value_heads": null)").num_kv_heads, 4);
  EXPECT_EQ(read("qwen3", R"("num_key_value_heads": 2)").head_dim, 128);
  EXPECT_EQ(read("qwen3", R"("num_key_value_heads": 2, "head_dim": null)").head_dim, 8);
  EXPECT_EQ(read("mixtral", R"("num_key_value_heads": 2)").rms_norm_eps, 1e-5);
  EXPECT_EQ(read("mixtral", R"("num_key_value_heads": 2)").rope.theta, 1e6);
}

TEST_F(Config, KnowsTheBiasesOfEachFamily) {
  const std::string asked = R"("num_key_value_heads": 2, "attention_bias": true, "mlp_bias": true)";
  const auto biases = [&](const char* type) {
    const ModelConfig config = read(type, asked);
    return std::vector<bool>{config.qkv_bias, config.o_bias, config.mlp_bias};
  };
  EXPECT_THAT(biases("llama"), ElementsAre(true, true, true));
  EXPECT_THAT(biases("mistral"), ElementsAre(false, false, false));
  EXPECT_THAT(biases("qwen2"), ElementsAre(true, false, false));
  EXPECT_THAT(biases("qwen3"), ElementsAre(true, true, false));
  EXPECT_THAT(biases("mixtral"), ElementsAre(false, false, false));
}

TEST_F(Config, SaysWhichFieldsItHasNoUseFor) {
  EXPECT_THAT(read("mistral", R"("num_key_value_heads": 2, "mlp_bias": true, "use_cache": true,
                                 "surprise": 1)")
                  .unused_fields,
              ElementsAre("mlp_bias", "surprise"));
}

TEST_F(Config, ReadsWindowsByLayer) {
  const std::string heads = R"("num_key_value_heads": 2, "sliding_window": 5)";
  EXPECT_THAT(read("mistral", heads).windows, ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(read("mistral", R"("num_key_value_heads": 2, "sliding_window": null)").windows,
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(read("qwen2", heads).windows, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(
      read("qwen2", heads + R"(, "use_sliding_window": true, "max_window_layers": 3)").windows,
      ElementsAre(0, 0, 0, 5));
  EXPECT_THAT(read("qwen3_moe", heads + R"(, "use_sliding_window": true)").windows,
              ElementsAre(5, 5, 5, 5));
}

TEST_F(Config, LetsTheOlderSpellingOfRopeWin) {
  const RopeConfig rope =
      read("llama", R"("rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 3},
                       "rope_parameters": {"rope_type": "default", "rope_theta": 9})")
          .rope;
  EXPECT_EQ(rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(rope.theta, 7);
  EXPECT_EQ(rope.factor, 3);
}

struct Refused {
  const char* type;
  const char* fields;
  const char* named;   // the field that the message names
  const char* reason;  // and what it says of it
};

class ConfigRefuses : public Config, public testing::WithParamInterface<Refused> {};

TEST_P(ConfigRefuses, WithAFieldAndARule) {
  const Refused& c = GetParam();
  EXPECT_THAT(error_of(c.type, c.fields), AllOf(HasSubstr(c.named), HasSubstr(c.reason)));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, ConfigRefuses,
    testing::Values(
        Refused{"gemma", "", "model_type", "llama, mistral, qwen2, qwen3, qwen3_moe, mixtral"},
        Refused{"llama", R"("hidden_act": "gelu")", "hidden_act", "silu"},
        Refused{"llama", R"("is_causal": false)", "is_causal", "true"},
        Refused{"llama", R"("quantization_config": {"bits": 4})", "quantization_config", "built"},
        Refused{"llama", R"("num_key_value_heads": 3)", "num_key_value_heads", "divide"},
        Refused{"llama", R"("num_key_value_heads": "4")", "num_key_value_heads", "whole number"},
        Refused{"llama", R"("num_key_value_heads": 2.0)", "num_key_value_heads", "whole number"},
        Refused{"llama", R"("head_dim": 7)", "head_dim", "even"},
        Refused{"llama", R"("pad_token_id": 61)", "pad_token_id", "60"},
        Refused{"llama", R"("attention_dropout": 1.0)", "attention_dropout", "below 1"},
        Refused{"llama", R"("tie_word_embeddings": 1)", "tie_word_embeddings", "true or false"},
        Refused{"llama", R"("rms_norm_eps": 0)", "rms_norm_eps", "above 0"},
        Refused{"llama", R"("partial_rotary_factor": 0.5)", "partial_rotary_factor", "whole"},
        Refused{"llama", R"("rope_scaling": {"rope_type": "longrope", "factor": 2})", "rope_type",
                "yarn"},
        Refused{"llama", R"("rope_scaling": {"rope_type": "linear"})", "rope_scaling.factor",
                "has no"},
        Refused{"llama", R"("rope_scaling": {"rope_type": "linear", "factor": -1})",
                "rope_scaling.factor", "above 0"},
        Refused{"llama", R"("rope_parameters": {"full_attention": {"rope_type": "default"}})",
                "rope_parameters", "layer type"},
        Refused{"llama",
                R"("rope_parameters": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4,
                                       "high_freq_factor": 4})",
                "rope_parameters.high_freq_factor", "above low_freq_factor"},
        Refused{"mistral", R"("num_key_value_heads": 2, "sliding_window": 0)", "sliding_window",
                "from 1"},
        Refused{"qwen2", R"("num_key_value_heads": 2, "layer_types": ["sliding_attention"])",
                "layer_types", "4 layers"},
        Refused{"qwen2",
                R"("num_key_value_heads": 2, "layer_types": ["full_attention", "full_attention",
                   "full_attention", "sliding_attention"])",
                "layer_types", "use_sliding_window"},
        Refused{"qwen3_moe", R"("num_experts": 4, "num_experts_per_tok": 5)", "num_experts_per_tok",
                "from 1 to 4"},
        Refused{"mixtral", R"("num_key_value_heads": 2, "router_jitter_noise": 0.1)",
                "router_jitter_noise", "only 0"}));

}  // namespace
}  // namespace tessera
