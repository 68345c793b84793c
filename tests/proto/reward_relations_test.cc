// Rules of what judges completions.
#include "proto/spec/reward_relations.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::spec {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

// Of a job of GRPO with one reward, changed. Only the rules of rewards: whether completions can be
// made is another matter.
std::vector<std::string> messages_after(const std::function<void(v1::JobSpec&)>& change) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_grpo();
  v1::RewardFunc& func = *spec.add_reward_funcs();
  func.set_name("short");
  func.mutable_length();
  change(spec);
  fill_defaults(spec);
  std::vector<Violation> violations;
  check_reward_relations(spec, violations);
  std::vector<std::string> out;
  for (const Violation& violation : violations) out.push_back(violation.message);
  return out;
}

v1::RewardFunc& first(v1::JobSpec& spec) { return *spec.mutable_reward_funcs(0); }

struct Rule {
  const char* name;
  void (*change)(v1::JobSpec& spec);
  std::string message;
};
void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

class RewardRelations : public ::testing::TestWithParam<Rule> {};

TEST_P(RewardRelations, IsKept) {
  EXPECT_THAT(messages_after(GetParam().change), Contains(GetParam().message));
}

const Rule kRules[] = {
    {"None", [](auto& s) { s.clear_reward_funcs(); },
     "reward_funcs is missing, must hold what judges the completions that method.grpo makes"},
    {"OfAMethodWithoutCompletions", [](auto& s) { s.mutable_method()->mutable_sft(); },
     "reward_funcs are given, must be absent with method.sft, which has no use for rewards"},
    {"BadName", [](auto& s) { first(s).set_name("a b"); },
     "reward_funcs[0].name is \"a b\", must hold only letters, digits, '-', '_' and '.'"},
    {"SameName",
     [](auto& s) {
       v1::RewardFunc& func = *s.add_reward_funcs();
       func.set_name("short");
       func.mutable_format();
     },
     "reward_funcs[1].name is \"short\", which another one has, must be its own"},
    {"NoKind", [](auto& s) { first(s).clear_length(); },
     "reward_funcs[0].name is \"short\", beside which there must be exactly one kind: "
     "exact_answer, regex, format, length, json_schema, model or server"},
    {"Weights",
     [](auto& s) { s.mutable_method()->mutable_grpo()->mutable_reward_weights()->Resize(2, 1); },
     "method.grpo.reward_weights is a list of 2, must hold one for each of the 1 of reward_funcs"},
    {"ShortestBeyondLongest", [](auto& s) { first(s).mutable_length()->set_min_tokens(513); },
     "reward_funcs[0].length.min_tokens is 513, must be at most max_tokens, 512"},
    {"CacheBeyondLongest",
     [](auto& s) {
       first(s).mutable_length()->set_max_tokens(10);
       first(s).mutable_length()->set_soft_punish_cache(11);
     },
     "reward_funcs[0].length.soft_punish_cache is 11, must be at most max_tokens, 10"},
    {"Tag", [](auto& s) { first(s).mutable_format()->add_tags("<think>"); },
     "reward_funcs[0].format.tags holds \"<think>\", must hold names of tags, as in think: "
     "letters, digits, '-', '_' and '.'"},
    {"TagTwice",
     [](auto& s) {
       first(s).mutable_format()->add_tags("a");
       first(s).mutable_format()->add_tags("a");
     },
     "reward_funcs[0].format.tags holds \"a\" twice, must hold each tag once"},
    {"Address", [](auto& s) { first(s).mutable_server()->set_address("localhost"); },
     "reward_funcs[0].server.address is \"localhost\", must be host:port, or unix:///path"},
};
INSTANTIATE_TEST_SUITE_P(All, RewardRelations, ::testing::ValuesIn(kRules),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(RewardRelations, Addresses) {
  const auto is_good = [](const char* address) {
    return messages_after([&](auto& s) { first(s).mutable_server()->set_address(address); })
        .empty();
  };
  for (const char* address : {"a:1", "rewards.example:50051", "127.0.0.1:65535", "[::1]:50051",
                              "unix:///run/rewards.sock"}) {
    EXPECT_TRUE(is_good(address)) << address;
  }
  for (const char* address : {"a:0", "a:65536", ":1", "::1:50051", "a b:1", "dns:///a:1", "a:1/x",
                              "unix:///", "unix:rewards.sock"}) {
    EXPECT_FALSE(is_good(address)) << address;
  }
}

TEST(RewardRelations, RecordedRolloutsHaveTheirs) {
  EXPECT_THAT(messages_after([](auto& s) {
                s.clear_reward_funcs();
                s.mutable_data()->add_rollouts("/data/r.jsonl");
              }),
              IsEmpty());
}

TEST(RewardRelations, TheLongestCompletionIsTheMethods) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_ppo();
  fill_defaults(spec);
  EXPECT_EQ(longest_completion(spec.method()), 53);
  v1::LengthReward length;
  EXPECT_EQ(longest_completion(length, spec.method()), 53);
  length.set_max_tokens(9);
  EXPECT_EQ(longest_completion(length, spec.method()), 9);
}

}  // namespace
}  // namespace tessera::spec
