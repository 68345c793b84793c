#include "worker/model/config.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "worker/errors.h"
#include "worker/model/families.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::streamsize kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxDimension = int64_t{1} << 24;

class ConfigReader {
 public:
  explicit ConfigReader(const std::filesystem::path& directory) : path_(directory / "config.json") {
    std::ifstream file(path_, std::ios::binary);
    if (!file) fail("cannot be read");
    std::string text(kMaxConfigBytes, '\0');
    file.read(text.data(), kMaxConfigBytes);
    if (file.gcount() == kMaxConfigBytes) fail("is larger than 1 MiB");
    text.resize(file.gcount());
    root_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!root_.is_object()) fail("is not a JSON object");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw UserError("model.path", path_.string() + " " + what);
  }

  bool has(const char* key) const { return root_.contains(key) && !root_[key].is_null(); }
  const json& root() const { return root_; }

  int64_t dimension(const char* key) const {
    if (!has(key)) fail(std::string("has no ") + key);
    return dimension_or(key, 0);
  }
  int64_t dimension_or(const char* key, int64_t otherwise) const {
    if (!has(key)) return otherwise;
    if (!root_[key].is_number_integer()) fail_value(key, root_[key], "must be a whole number");
    const int64_t value = root_[key].get<int64_t>();
    if (value < 1 || value > kMaxDimension) {
      fail_value(key, root_[key], "must be between 1 and " + std::to_string(kMaxDimension));
    }
    return value;
  }
  int64_t token_or(int64_t vocab_size, const char* key, int64_t otherwise) const {
    if (!has(key)) return otherwise;
    if (!root_[key].is_number_integer()) fail_value(key, root_[key], "must be a token id");
    const int64_t value = root_[key].get<int64_t>();
    if (value < -1 || value >= vocab_size) {
      fail_value(key, root_[key], "must be below vocab_size = " + std::to_string(vocab_size));
    }
    return value;
  }
  double positive_or(const json& object, const char* key, double otherwise) const {
    if (!object.contains(key) || object[key].is_null()) return otherwise;
    if (!object[key].is_number() || !(object[key].get<double>() > 0)) {
      fail_value(key, object[key], "must be a number above 0");
    }
    return object[key].get<double>();
  }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    if (!root_[key].is_boolean()) fail_value(key, root_[key], "must be true or false");
    return root_[key].get<bool>();
  }
  std::string text_or(const json& object, const char* key, const std::string& otherwise) const {
    if (!object.contains(key) || object[key].is_null()) return otherwise;
    if (!object[key].is_string()) fail_value(key, object[key], "must be a string");
    return object[key].get<std::string>();
  }
  [[noreturn]] void fail_value(const std::string& key, const json& value,
                               const std::string& rule) const {
    fail("has " + key + " = " +
         value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 80) + ", " + rule);
  }

 private:
  std::filesystem::path path_;
  json root_;
};

// transformers 5 keeps rope_theta and rope_type in rope_parameters; before, they stood in the root
// and in rope_scaling.
double read_rope(const ConfigReader& reader) {
  double theta = reader.positive_or(reader.root(), "rope_theta", 10000.0);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!reader.has(key)) continue;
    const json& rope = reader.root()[key];
    if (!rope.is_object()) reader.fail_value(key, rope, "must be an object");
    theta = reader.positive_or(rope, "rope_theta", theta);
    const std::string type =
        reader.text_or(rope, "rope_type", reader.text_or(rope, "type", "default"));
    if (type != "default") reader.fail_value("rope_type", rope, "only \"default\" is built");
  }
  return theta;
}

void refuse_what_is_not_built(const ConfigReader& reader) {
  const std::string activation = reader.text_or(reader.root(), "hidden_act", "silu");
  if (activation != "silu") reader.fail_value("hidden_act", activation, "only \"silu\" is built");
  if (reader.flag("use_sliding_window"))
    reader.fail("has use_sliding_window = true, which is not built");
  if (reader.has("attention_dropout") && reader.root()["attention_dropout"] != 0) {
    reader.fail_value("attention_dropout", reader.root()["attention_dropout"], "only 0 is built");
  }
  if (reader.has("quantization_config")) {
    reader.fail("has a quantization_config; only unquantized weights are built");
  }
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw UserError("model.path", "model.path " + directory.string() + " is not a directory");
  }
  const ConfigReader reader(directory);
  ModelConfig config;
  config.model_type = reader.text_or(reader.root(), "model_type", "");
  const ModelFamily* family = find_model_family(config.model_type);
  if (family == nullptr) {
    reader.fail_value("model_type", config.model_type, "must be one of " + model_family_names());
  }
  config.vocab_size = reader.dimension("vocab_size");
  config.hidden_size = reader.dimension("hidden_size");
  config.intermediate_size = reader.dimension("intermediate_size");
  config.num_layers = reader.dimension("num_hidden_layers");
  config.num_heads = reader.dimension("num_attention_heads");
  config.num_kv_heads = reader.dimension_or("num_key_value_heads", config.num_heads);
  config.head_dim = reader.dimension_or("head_dim", config.hidden_size / config.num_heads);
  config.rms_norm_eps = reader.positive_or(reader.root(), "rms_norm_eps", 1e-6);
  config.rope_theta = read_rope(reader);
  config.pad_token_id = reader.token_or(config.vocab_size, "pad_token_id", -1);
  config.tie_word_embeddings = reader.flag("tie_word_embeddings");
  config.attention_bias = reader.flag("attention_bias");
  config.mlp_bias = reader.flag("mlp_bias");
  refuse_what_is_not_built(reader);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.fail_value("num_key_value_heads", config.num_kv_heads,
                      "must divide num_attention_heads");
  }
  if (config.head_dim % 2 != 0) reader.fail_value("head_dim", config.head_dim, "must be even");
  family->adjust(config);
  return config;
}

}  // namespace tessera
