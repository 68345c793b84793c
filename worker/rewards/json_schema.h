// JSON Schema, draft 7, for schemas of the user's and values that a model wrote: a check takes a
// bounded number of steps, and patterns are PCRE2's. Of the libraries at hand the one that packages
// offer matches patterns by recursion, which a long string ends with the process.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// A value nested deeper than this is taken for none.
inline constexpr int kMaxJsonNesting = 128;

// Empty: the text is not one JSON value, or nested too deeply.
std::optional<nlohmann::json> parse_json(std::string_view text);

// `format`, `contentEncoding` and the like are notes and not checked, as the draft allows.
class JsonSchema {
 public:
  // Throws std::invalid_argument saying what is wrong with it and where: it is no schema of draft
  // 7, has keywords of a later one, refers to what is not in it, or a pattern is malformed.
  explicit JsonSchema(nlohmann::json document);
  ~JsonSchema();
  JsonSchema(JsonSchema&&) noexcept;

  // Empty: it took too many steps, so nobody knows.
  std::optional<bool> allows(const nlohmann::json& value) const;

 private:
  struct State;

  // `draft`: what it has to keep; null: it is that itself.
  JsonSchema(nlohmann::json document, const JsonSchema* draft);
  static const JsonSchema& draft7();

  std::unique_ptr<const State> state_;
};

}  // namespace tessera
