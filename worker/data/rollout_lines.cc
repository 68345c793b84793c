#include "worker/data/rollout_lines.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tessera {
namespace {

using nlohmann::ordered_json;

ordered_json number_or_null(float value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

float to_float(const ordered_json& value) {
  return value.is_null() ? std::numeric_limits<float>::quiet_NaN() : value.get<float>();
}

std::vector<float> to_floats(const ordered_json& list) {
  std::vector<float> values;
  for (const ordered_json& value : list) values.push_back(to_float(value));
  return values;
}

Rollout parse_line(std::string_view line, const std::vector<std::string>& reward_names) {
  const ordered_json json = ordered_json::parse(line);
  Rollout rollout;
  if (json.contains("group")) rollout.group = json.at("group").dump();
  rollout.prompt = json.at("prompt_ids").get<std::vector<int32_t>>();
  rollout.completion = json.at("completion_ids").get<std::vector<int32_t>>();
  rollout.truncated = json.at("truncated").get<bool>();
  if (json.contains("step")) rollout.step = json.at("step").get<int64_t>();
  if (json.contains("env_mask")) rollout.mask = json.at("env_mask").get<std::vector<uint8_t>>();
  if (json.contains("logprobs")) rollout.logprobs = to_floats(json.at("logprobs"));
  for (const std::string& name : reward_names)
    rollout.rewards.push_back(to_float(json.at("rewards").at(name)));
  return rollout;
}

}  // namespace

std::string rollout_line(const Rollout& rollout, const std::vector<std::string>& reward_names,
                         const RolloutTexts* texts) {
  ordered_json json;
  if (!rollout.group.empty()) json["group"] = ordered_json::parse(rollout.group);
  if (texts != nullptr) {
    json["prompt"] = texts->prompt;
    json["completion"] = texts->completion;
  }
  json["prompt_ids"] = rollout.prompt;
  json["completion_ids"] = rollout.completion;
  if (!rollout.mask.empty()) json["env_mask"] = rollout.mask;
  if (!rollout.logprobs.empty()) {
    for (const float value : rollout.logprobs) json["logprobs"].push_back(number_or_null(value));
  }
  json["rewards"] = ordered_json::object();
  for (size_t i = 0; i < reward_names.size(); ++i)
    json["rewards"][reward_names[i]] = number_or_null(rollout.rewards[i]);
  json["truncated"] = rollout.truncated;
  if (rollout.step >= 0) json["step"] = rollout.step;
  return json.dump() + "\n";
}

std::vector<Rollout> parse_rollout_lines(std::string_view lines,
                                         const std::vector<std::string>& reward_names) {
  std::vector<Rollout> rollouts;
  try {
    while (!lines.empty()) {
      const size_t end = lines.find('\n');
      rollouts.push_back(parse_line(lines.substr(0, end), reward_names));
      lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
    }
  } catch (const ordered_json::exception& error) {
    throw std::invalid_argument(error.what());
  }
  return rollouts;
}

}  // namespace tessera
