#include "proto/spec/reward_relations.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/spec/method_fields.h"
#include "proto/spec/online_relations.h"

namespace tessera::spec {
namespace {

using Violations = std::vector<Violation>;

constexpr int kMaxPort = 65535;
constexpr size_t kMaxTagLength = 64;

// Appends "FIELD is VALUE, must RULE".
class Refusals {
 public:
  Refusals(std::string prefix, Violations& out) : prefix_(std::move(prefix)), out_(out) {}

  void add(const std::string& field, const std::string& rest) const {
    out_.push_back({prefix_ + field, absl::StrCat(prefix_, field, " ", rest)});
  }

 private:
  const std::string prefix_;
  Violations& out_;
};

bool is_label(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

// host:port, [::1]:port or unix:///path.
bool is_address(absl::string_view address) {
  if (absl::StartsWith(address, "unix:"))
    return absl::StartsWith(address, "unix:///") && address.size() > sizeof("unix:///") - 1;
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  const absl::string_view host = address.substr(0, colon);
  const bool is_bracketed = host.front() == '[' && host.back() == ']';
  if (!is_bracketed && host.find_first_of(":[]/") != absl::string_view::npos) return false;
  if (std::any_of(host.begin(), host.end(), [](char c) { return !absl::ascii_isgraph(c); }))
    return false;
  int port = 0;
  return absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 && port <= kMaxPort;
}

void check_format(const v1::FormatReward& format, const Refusals& refusals) {
  std::set<std::string> seen;
  for (const std::string& tag : format.tags()) {
    if (tag.empty() || tag.size() > kMaxTagLength || !is_label(tag)) {
      refusals.add("format.tags",
                   absl::StrCat("holds \"", tag.substr(0, kMaxTagLength),
                                "\", must hold names of tags, as in think: letters, digits, '-', "
                                "'_' and '.'"));
    } else if (!seen.insert(tag).second) {
      refusals.add("format.tags",
                   absl::StrCat("holds \"", tag, "\" twice, must hold each tag once"));
    }
  }
}

void check_length(const v1::LengthReward& length, const v1::Method& method,
                  const Refusals& refusals) {
  const int64_t longest = longest_completion(length, method);
  if (length.min_tokens() > longest) {
    refusals.add("length.min_tokens", absl::StrCat("is ", length.min_tokens(),
                                                   ", must be at most max_tokens, ", longest));
  }
  if (length.soft_punish_cache() > longest) {
    refusals.add(
        "length.soft_punish_cache",
        absl::StrCat("is ", length.soft_punish_cache(), ", must be at most max_tokens, ", longest));
  }
}

void check_server(const v1::RewardServer& server, const Refusals& refusals) {
  if (!server.address().empty() && !is_address(server.address())) {
    refusals.add("server.address", absl::StrCat("is \"", server.address().substr(0, 64),
                                                "\", must be host:port, or unix:///path"));
  }
}

void check_kind(const v1::RewardFunc& func, const v1::Method& method, const Refusals& refusals) {
  switch (func.kind_case()) {
    case v1::RewardFunc::kFormat:
      return check_format(func.format(), refusals);
    case v1::RewardFunc::kLength:
      return check_length(func.length(), method, refusals);
    case v1::RewardFunc::kServer:
      return check_server(func.server(), refusals);
    case v1::RewardFunc::kExactAnswer:
    case v1::RewardFunc::kRegex:
    case v1::RewardFunc::kJsonSchema:
    case v1::RewardFunc::kModel:
      return;
    case v1::RewardFunc::KIND_NOT_SET:
      refusals.add("name", absl::StrCat("is \"", func.name(),
                                        "\", beside which there must be exactly one kind: "
                                        "exact_answer, regex, format, length, json_schema, model "
                                        "or server"));
  }
}

void check_names(const v1::JobSpec& spec, Violations& out) {
  std::set<std::string> seen;
  for (int i = 0; i < spec.reward_funcs_size(); ++i) {
    const std::string& name = spec.reward_funcs(i).name();
    const Refusals refusals(absl::StrCat("reward_funcs[", i, "]."), out);
    if (!is_label(name)) {
      refusals.add("name", absl::StrCat("is \"", name.substr(0, 64),
                                        "\", must hold only letters, digits, '-', '_' and '.'"));
    } else if (!name.empty() && !seen.insert(name).second) {
      refusals.add("name",
                   absl::StrCat("is \"", name, "\", which another one has, must be its own"));
    }
  }
}

// Of a method that makes completions.
int num_weights(const v1::Method& method) {
  if (method.has_grpo()) return method.grpo().reward_weights_size();
  if (method.has_rloo()) return method.rloo().reward_weights_size();
  if (method.has_online_dpo()) return method.online_dpo().reward_weights_size();
  return method.ppo().reward_weights_size();
}

void check_weights(const v1::JobSpec& spec, Violations& out) {
  const int weights = num_weights(spec.method());
  if (weights == 0 || weights == spec.reward_funcs_size()) return;
  const std::string field = method_fields(spec.method()).field("reward_weights");
  out.push_back(
      {field, absl::StrCat(field, " is a list of ", weights, ", must hold one for each of the ",
                           spec.reward_funcs_size(), " of reward_funcs")});
}

}  // namespace

int64_t longest_completion(const v1::Method& method) {
  switch (method.kind_case()) {
    case v1::Method::kGrpo:
      return method.grpo().max_completion_length();
    case v1::Method::kRloo:
      return method.rloo().max_completion_length();
    case v1::Method::kOnlineDpo:
      return method.online_dpo().max_new_tokens();
    case v1::Method::kPpo:
      return method.ppo().response_length();
    case v1::Method::kGkd:
      return method.gkd().max_new_tokens();
    default:
      return 0;
  }
}

int64_t longest_completion(const v1::LengthReward& reward, const v1::Method& method) {
  return reward.has_max_tokens() ? reward.max_tokens() : longest_completion(method);
}

void check_reward_relations(const v1::JobSpec& spec, Violations& out) {
  if (!spec.has_method()) return;
  const std::string method = method_fields(spec.method()).method;
  if (!takes_completions(spec.method())) {
    if (spec.reward_funcs().empty()) return;
    out.push_back({"reward_funcs", absl::StrCat("reward_funcs are given, must be absent with ",
                                                method, ", which has no use for rewards")});
    return;
  }
  if (spec.reward_funcs().empty()) {
    if (!spec.data().rollouts().empty()) return;
    out.push_back({"reward_funcs",
                   absl::StrCat("reward_funcs is missing, must hold what judges the completions "
                                "that ",
                                method, " makes")});
    return;
  }
  check_names(spec, out);
  check_weights(spec, out);
  for (int i = 0; i < spec.reward_funcs_size(); ++i) {
    check_kind(spec.reward_funcs(i), spec.method(),
               Refusals(absl::StrCat("reward_funcs[", i, "]."), out));
  }
}

}  // namespace tessera::spec
