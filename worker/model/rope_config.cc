// Source: transformers/modeling_rope_utils.py.
#include "worker/model/rope_config.h"

#include <cmath>
#include <optional>

namespace tessera {
namespace {

using Type = RopeConfig::Type;

// The object that holds the parameters, if any does.
std::optional<ConfigObject> find_parameters(const ConfigObject& root) {
  std::optional<ConfigObject> found;
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    if (!root.has(field)) continue;
    const ConfigObject parameters = root.object(field);
    if (parameters.is_nested()) {
      root.fail_value(field, "must be one set of parameters: none by layer type is built");
    }
    if (!parameters.is_empty()) found = parameters;
  }
  return found;
}

Type read_type(const ConfigObject& parameters) {
  const char* field = parameters.has("rope_type") ? "rope_type" : "type";
  const std::string name = parameters.text_or(field, "default");
  if (name == "default") return Type::kDefault;
  if (name == "linear") return Type::kLinear;
  if (name == "dynamic") return Type::kDynamic;
  if (name == "llama3") return Type::kLlama3;
  if (name == "yarn") return Type::kYarn;
  parameters.fail_value(field, "must be default, linear, dynamic, llama3 or yarn");
}

// How much YaRN sharpens attention at a scale.
double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void read_llama3(const ConfigObject& parameters, RopeConfig& rope) {
  rope.low_freq_factor = parameters.positive("low_freq_factor");
  rope.high_freq_factor = parameters.positive("high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    parameters.fail_value("high_freq_factor", "must be above low_freq_factor");
  }
}

void read_yarn(const ConfigObject& parameters, RopeConfig& rope) {
  if (rope.theta == 1) parameters.fail("has rope_theta = 1, which yarn cannot scale");
  // In transformers a zero means the default as well.
  const auto number_or = [&](const char* field, double otherwise) {
    const double value = parameters.number_or(field, 0);
    if (value < 0) parameters.fail_value(field, "must not be below 0");
    return value == 0 ? otherwise : value;
  };
  rope.beta_fast = number_or("beta_fast", 32);
  rope.beta_slow = number_or("beta_slow", 1);
  rope.truncate = parameters.flag("truncate", !parameters.mentions("truncate"));
  const double mscale = number_or("mscale", 0), mscale_all_dim = number_or("mscale_all_dim", 0);
  rope.attention_factor =
      mscale > 0 && mscale_all_dim > 0
          ? yarn_scale(rope.factor, mscale) / yarn_scale(rope.factor, mscale_all_dim)
          : yarn_scale(rope.factor, 1);
  rope.attention_factor = parameters.positive_or("attention_factor", rope.attention_factor);
}

// In the object, or, from before transformers 5, beside it.
double read_partial_factor(const ConfigObject& root, const ConfigObject& parameters) {
  return parameters.number_or("partial_rotary_factor", root.number_or("partial_rotary_factor", 1));
}

}  // namespace

RopeConfig read_rope_config(const ConfigObject& root, double default_theta, int64_t max_positions) {
  RopeConfig rope;
  rope.max_positions = max_positions;
  rope.theta = root.positive_or("rope_theta", default_theta);
  const int64_t root_original = root.dimension_or("original_max_position_embeddings", 0);
  const std::optional<ConfigObject> parameters = find_parameters(root);
  if (read_partial_factor(root, parameters ? *parameters : root) != 1) {
    root.fail("has a partial_rotary_factor other than 1, and the whole of each head is rotated");
  }
  if (!parameters) return rope;
  rope.theta = parameters->positive_or("rope_theta", rope.theta);
  rope.type = read_type(*parameters);
  if (rope.type == Type::kDefault) return rope;
  const int64_t own_original =
      parameters->dimension_or("original_max_position_embeddings", max_positions);
  rope.original_max_positions = root_original > 0 ? root_original : own_original;
  const bool derives_factor = rope.type == Type::kYarn && parameters->mentions("factor");
  rope.factor = derives_factor
                    ? parameters->positive_or("factor", static_cast<double>(max_positions) /
                                                            rope.original_max_positions)
                    : parameters->positive("factor");
  if (rope.type == Type::kLlama3) read_llama3(*parameters, rope);
  if (rope.type == Type::kYarn) read_yarn(*parameters, rope);
  return rope;
}

}  // namespace tessera
