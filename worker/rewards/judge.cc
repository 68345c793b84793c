#include "worker/rewards/judge.h"

#include <limits>

#include "proto/spec/reward_relations.h"
#include "worker/rewards/rules.h"
#include "worker/rewards/servers.h"

namespace tessera {
namespace {

// Null: the entry is no rule.
std::unique_ptr<RewardRule> make_rule(const v1::JobSpec& spec, int index) {
  const v1::RewardFunc& func = spec.reward_funcs(index);
  const std::string field = "reward_funcs[" + std::to_string(index) + "].";
  switch (func.kind_case()) {
    case v1::RewardFunc::kExactAnswer:
      return make_exact_answer(func.exact_answer(), field + "exact_answer");
    case v1::RewardFunc::kRegex:
      return make_regex(func.regex(), field + "regex");
    case v1::RewardFunc::kFormat:
      return make_format(func.format());
    case v1::RewardFunc::kLength:
      return make_length(func.length(), spec::longest_completion(func.length(), spec.method()));
    case v1::RewardFunc::kJsonSchema:
      return make_json_schema(func.json_schema(), field + "json_schema");
    case v1::RewardFunc::kModel:
    case v1::RewardFunc::kServer:
    case v1::RewardFunc::KIND_NOT_SET:
      break;
  }
  return nullptr;
}

std::filesystem::path helper_or_default(const std::filesystem::path& program) {
  return program.empty() ? helper_beside_this_program() : program;
}

}  // namespace

struct Judges::State {
  const v1::JobSpec spec;
  const Context context;
  std::vector<std::unique_ptr<RewardRule>> rules;  // by reward_funcs entry; null: it is no rule
  RewardServers servers;

  State(const v1::JobSpec& job, Context callbacks, const std::filesystem::path& program)
      : spec(job),
        context(std::move(callbacks)),
        servers(spec, context, helper_or_default(program)) {
    for (int i = 0; i < spec.reward_funcs_size(); ++i) rules.push_back(make_rule(spec, i));
  }
};

Judges::Judges(const v1::JobSpec& spec, Context context, const std::filesystem::path& program)
    : state_(std::make_unique<State>(spec, std::move(context), program)) {}

Judges::~Judges() = default;

std::vector<float> Judges::judge(std::span<const JudgedCompletion> completions, int32_t step) {
  const std::vector<std::unique_ptr<RewardRule>>& rules = state_->rules;
  std::vector<float> scores(completions.size() * rules.size(),
                            std::numeric_limits<float>::quiet_NaN());
  if (completions.empty()) return scores;
  // Servers work while the rules do.
  state_->servers.ask(completions, step);
  for (size_t i = 0; i < completions.size(); ++i) {
    for (size_t j = 0; j < rules.size(); ++j) {
      if (rules[j]) scores[i * rules.size() + j] = rules[j]->score(completions[i]);
    }
    state_->context.alive();
  }
  state_->servers.collect(scores);
  return scores;
}

void check_judge(const v1::JobSpec& spec, int index, const std::filesystem::path& program) {
  make_rule(spec, index);
  const v1::RewardFunc& func = spec.reward_funcs(index);
  if (func.has_server()) check_server(func.server(), index, helper_or_default(program));
}

}  // namespace tessera
