// Changes one value in a JSON text and leaves every other byte: numbers like 1e-06 and the order of
// keys survive no parser.
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "worker/checkpoint/export.h"

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

}  // namespace

std::string config_with_dtype(const std::string& config, const std::string& dtype) {
  const auto parsed = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return "";
  const std::string value = "\"" + dtype + "\"";
  const std::vector<Member> members = members_of(config);
  std::string changed = config;
  bool found = false;
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (member->key != "dtype" && member->key != "torch_dtype") continue;
    changed.replace(member->value_begin, member->value_end - member->value_begin, value);
    found = true;
  }
  if (found) return changed;
  const std::string member = "\"dtype\": " + value;
  if (members.empty()) return "{\n  " + member + "\n}\n";
  // transformers sorts keys: before the first that comes behind it, or else after the last.
  for (const Member& next : members) {
    if (next.key < "dtype") continue;
    const size_t line = config.find_last_not_of(" \t\r\n", next.begin - 1) + 1;
    return changed.insert(next.begin, member + "," + config.substr(line, next.begin - line));
  }
  const size_t line = config.find_last_not_of(" \t\r\n", members.back().begin - 1) + 1;
  const std::string blanks = config.substr(line, members.back().begin - line);
  return changed.insert(members.back().value_end, "," + blanks + member);
}

}  // namespace tessera
