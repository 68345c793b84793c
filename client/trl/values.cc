#include "client/trl/values.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tessera::trl {
namespace {

using Kind = YamlNode::Kind;

constexpr size_t kMaxShown = 64;

}  // namespace

std::string shown(const YamlNode& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a section";
    case Kind::kScalar:
      break;
  }
  std::string text = node.scalar.substr(0, kMaxShown);
  std::ranges::replace_if(text, [](char c) { return absl::ascii_iscntrl(c); }, ' ');
  return node.scalar.size() > kMaxShown ? text + "..." : text;
}

bool is_nothing(const YamlNode& node) {
  switch (node.kind) {
    case Kind::kNull:
      return true;
    case Kind::kList:
      return node.items.empty();
    case Kind::kMap:
      return node.entries.empty();
    case Kind::kScalar:
      break;
  }
  return node.scalar.empty();
}

bool is_one_of(const YamlNode& node, const char* words) {
  if (node.kind != Kind::kScalar) return false;
  const std::string text = absl::AsciiStrToLower(node.scalar);
  const std::vector<std::string> known = absl::StrSplit(words, '|', absl::SkipEmpty());
  return std::ranges::find(known, text) != known.end();
}

std::optional<bool> as_bool(const YamlNode& node) {
  if (is_one_of(node, "true|yes|on|1|y|t")) return true;
  if (is_one_of(node, "false|no|off|0|n|f")) return false;
  return std::nullopt;
}

std::optional<int> as_int(const YamlNode& node) {
  int value = 0;
  if (node.kind != Kind::kScalar) return std::nullopt;
  if (!absl::SimpleAtoi(absl::StrReplaceAll(node.scalar, {{"_", ""}}), &value)) return std::nullopt;
  return value;
}

std::optional<std::vector<std::string>> as_texts(const YamlNode& node) {
  if (node.kind == Kind::kScalar) return std::vector<std::string>{node.scalar};
  if (node.kind != Kind::kList) return std::nullopt;
  std::vector<std::string> texts;
  for (const YamlNode& item : node.items) {
    if (item.kind != Kind::kScalar) return std::nullopt;
    texts.push_back(item.scalar);
  }
  return texts;
}

std::optional<YamlNode> as_section(const YamlNode& node) {
  if (node.kind == Kind::kMap) return node;
  if (node.kind != Kind::kScalar ||
      !absl::StartsWith(absl::StripLeadingAsciiWhitespace(node.scalar), "{")) {
    return std::nullopt;
  }
  try {
    YamlNode section = parse_yaml(node.scalar);
    if (section.kind == Kind::kMap) return section;
  } catch (const YamlError&) {
    // Said by who asked: it is no section.
  }
  return std::nullopt;
}

}  // namespace tessera::trl
