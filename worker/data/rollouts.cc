#include "worker/data/rollouts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "worker/data/data_files.h"
#include "worker/data/example_formats.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::ordered_json;

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

// Reads records, of which the first one says what all of them hold.
class Reader {
 public:
  explicit Reader(const DatasetOptions& options) : options_(options) {}

  void read(const Record& record) {
    Rollout rollout;
    read_tokens(record, "prompt_ids", rollout.prompt);
    read_tokens(record, "completion_ids", rollout.completion);
    if (record.has("env_mask")) read_mask(record, rollout);
    if (record.has("truncated")) rollout.truncated = read_flag(record, "truncated");
    read_as_first(record, "logprobs", read_.has_logprobs, [&] { read_logprobs(record, rollout); });
    read_as_first(record, "group", read_.has_groups,
                  [&] { rollout.group = record.json("group").dump(); });
    read_rewards(record, rollout);
    read_.rollouts.push_back(std::move(rollout));
  }

  Rollouts take() { return std::move(read_); }

 private:
  void read_tokens(const Record& record, const std::string& field,
                   std::vector<int32_t>& tokens) const {
    append_token_ids(record, field, tokens);
    if (tokens.empty()) record.fail("\"" + field + "\" is empty");
    const int32_t largest = std::ranges::max(tokens);
    if (options_.vocab_size == 0 || largest < options_.vocab_size) return;
    record.fail("\"" + field + "\" holds token " + std::to_string(largest) +
                ", and the model's vocabulary has " + std::to_string(options_.vocab_size));
  }

  // As long as the completion.
  static ordered_json read_column(const Record& record, const char* field, const Rollout& rollout) {
    ordered_json values = record.json(field);
    if (!values.is_array() || values.size() != rollout.completion.size()) {
      record.fail("\"" + std::string(field) + "\" must be a list as long as \"completion_ids\"");
    }
    return values;
  }

  static void read_mask(const Record& record, Rollout& rollout) {
    for (const ordered_json& value : read_column(record, "env_mask", rollout)) {
      if (value != 0 && value != 1)
        record.fail("\"env_mask\" holds " + value.dump() + "; it must be 0 or 1");
      rollout.mask.push_back(value == 1 ? 1 : 0);
    }
  }

  static bool read_flag(const Record& record, const char* field) {
    const ordered_json value = record.json(field);
    if (!value.is_boolean())
      record.fail("\"" + std::string(field) + "\" is " + value.dump() + ", must be true or false");
    return value.get<bool>();
  }

  static float read_number(const Record& record, const std::string& what,
                           const ordered_json& value) {
    if (value.is_null()) return kUnknown;
    if (!value.is_number())
      record.fail(what + " is " + value.dump() + ", must be a number or null");
    return value.get<float>();
  }

  static void read_logprobs(const Record& record, Rollout& rollout) {
    for (const ordered_json& value : read_column(record, "logprobs", rollout))
      rollout.logprobs.push_back(read_number(record, "a value of \"logprobs\"", value));
  }

  // A field that all records have, or none.
  template <typename Read>
  void read_as_first(const Record& record, const char* field, bool& of_first, const Read& read) {
    const bool is_here = record.has(field);
    if (read_.rollouts.empty()) of_first = is_here;
    if (is_here != of_first) {
      record.fail("there is " + std::string(is_here ? "a" : "no") + " \"" + field +
                  "\", and the first record has " + (of_first ? "one" : "none"));
    }
    if (is_here) read();
  }

  void read_rewards(const Record& record, Rollout& rollout) {
    const ordered_json rewards =
        record.has("rewards") ? record.json("rewards") : ordered_json::object();
    if (!rewards.is_object()) record.fail("\"rewards\" must be an object of numbers");
    if (read_.rollouts.empty()) {
      for (const auto& [name, value] : rewards.items()) read_.reward_names.push_back(name);
    }
    for (const std::string& name : read_.reward_names) {
      if (!rewards.contains(name))
        record.fail("\"rewards\" holds no \"" + name + "\", which the first record has");
      rollout.rewards.push_back(read_number(record, "the reward \"" + name + "\"", rewards[name]));
    }
    if (rewards.size() != read_.reward_names.size())
      record.fail("\"rewards\" holds others than those of the first record");
  }

  const DatasetOptions& options_;
  Rollouts read_;
};

}  // namespace

Rollouts read_rollouts(const DatasetOptions& options) {
  Reader reader(options);
  for (const DataSource& source : options.sources) {
    for (const RecordFile& file : find_data_files(source.paths, source.field)) {
      const auto records = open_records(file);
      while (const auto block = records->next_block()) {
        options.reports.alive();
        while (const Record* record = block->next()) {
          reader.read(*record);
        }
      }
    }
  }
  Rollouts read = reader.take();
  if (read.rollouts.empty()) {
    const DataSource& first = options.sources.front();
    throw UserError(first.field, first.paths.front().string() + ": there are no rollouts in it");
  }
  return read;
}

double total_reward(const Rollout& rollout, std::span<const double> weights) {
  double sum = 0;
  bool is_judged = false;
  for (size_t i = 0; i < rollout.rewards.size(); ++i) {
    if (std::isnan(rollout.rewards[i])) continue;
    is_judged = true;
    sum += rollout.rewards[i] * (weights.empty() ? 1 : weights[i]);
  }
  return is_judged ? sum : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tessera
