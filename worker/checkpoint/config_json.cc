// Changes some values in a JSON text and leaves every other byte: numbers like 1e-06 and the order
// of keys survive no parser.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "worker/checkpoint/config_json.h"

namespace tessera {
namespace {

// A member of the outermost object. Positions are bytes of the text.
struct Member {
  std::string_view key;
  size_t begin;        // of the key's opening quote
  size_t value_begin;  // of the value
  size_t value_end;
};

// Behind the string that begins at `at`.
size_t skip_string(std::string_view text, size_t at) {
  for (++at; text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

// Behind the value that begins at `at`: at the ',' or '}' that ends it, or blanks before that.
size_t skip_value(std::string_view text, size_t at) {
  int depth = 0;
  size_t end = at;
  while (depth > 0 || (text[at] != ',' && text[at] != '}')) {
    const char c = text[at];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    at = c == '"' ? skip_string(text, at) : at + 1;
    if (std::string_view(" \t\r\n").find(c) == std::string_view::npos) end = at;
  }
  return end;
}

// Requires that `text` is a valid JSON object.
std::vector<Member> members_of(std::string_view text) {
  std::vector<Member> members;
  size_t at = text.find('{') + 1;
  while ((at = text.find_first_of("\"}", at)) != std::string_view::npos && text[at] == '"') {
    const size_t key_end = skip_string(text, at);
    const size_t value = text.find_first_not_of(" \t\r\n", text.find(':', key_end) + 1);
    const size_t value_end = skip_value(text, value);
    members.push_back({text.substr(at + 1, key_end - at - 2), at, value, value_end});
    at = value_end;
  }
  return members;
}

// Puts `value`, a JSON text, in the place of each member of one of the keys, or where there is none
// as a new member of the first.
std::string with_member(const std::string& config, const std::vector<std::string>& keys,
                        const std::string& value) {
  const std::vector<Member> members = members_of(config);
  std::string changed = config;
  bool found = false;
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (std::find(keys.begin(), keys.end(), member->key) == keys.end()) continue;
    changed.replace(member->value_begin, member->value_end - member->value_begin, value);
    found = true;
  }
  if (found) return changed;
  const std::string& key = keys.front();
  const std::string member = "\"" + key + "\": " + value;
  if (members.empty()) return "{\n  " + member + "\n}\n";
  // transformers sorts keys: before the first that comes behind it, or else after the last.
  for (const Member& next : members) {
    if (next.key < key) continue;
    const size_t line = config.find_last_not_of(" \t\r\n", next.begin - 1) + 1;
    return changed.insert(next.begin, member + "," + config.substr(line, next.begin - line));
  }
  const size_t line = config.find_last_not_of(" \t\r\n", members.back().begin - 1) + 1;
  const std::string blanks = config.substr(line, members.back().begin - line);
  return changed.insert(members.back().value_end, "," + blanks + member);
}

// A list or an object of one element, on lines of its own.
std::string lines_of(char open, const std::string& element, char close) {
  return std::string(1, open) + "\n    " + element + "\n  " + close;
}

}  // namespace

std::string config_with_dtype(const std::string& config, const std::string& dtype) {
  const auto parsed = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return "";
  return with_member(config, {"dtype", "torch_dtype"}, "\"" + dtype + "\"");
}

std::string config_of_classifier(const std::string& config, const std::string& class_name,
                                 int64_t pad_token_id) {
  const auto parsed = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return "";
  const std::string architecture = "\"" + class_name + "ForSequenceClassification\"";
  std::string changed = with_member(config, {"architectures"}, lines_of('[', architecture, ']'));
  const auto labels = parsed.find("id2label");
  if (labels == parsed.end() || labels->size() != 1) {
    changed = with_member(changed, {"id2label"}, lines_of('{', R"("0": "LABEL_0")", '}'));
    changed = with_member(changed, {"label2id"}, lines_of('{', R"("LABEL_0": 0)", '}'));
  }
  if (parsed.contains("num_labels")) changed = with_member(changed, {"num_labels"}, "1");
  if (pad_token_id >= 0)
    changed = with_member(changed, {"pad_token_id"}, std::to_string(pad_token_id));
  return changed;
}

}  // namespace tessera
