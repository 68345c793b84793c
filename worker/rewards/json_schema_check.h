// One check of a value against a schema: JsonSchema's inside.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "worker/rewards/pattern.h"

namespace tessera {

// What the keywords of a schema refer to.
struct SchemaTables {
  std::map<std::string, Pattern, std::less<>> patterns;            // by their text
  std::map<std::string, const nlohmann::json*, std::less<>> refs;  // by what $ref says
};

class SchemaCheck {
 public:
  // The check takes too many steps, or goes too deep.
  struct Exhausted {};

  explicit SchemaCheck(const SchemaTables& tables) : tables_(tables) {}

  // Throws Exhausted. Requires: the schema is one, and the tables are its own.
  bool is_valid(const nlohmann::json& schema, const nlohmann::json& value);
  bool matches(const std::string& pattern, std::string_view text);

 private:
  void take_step();

  const SchemaTables& tables_;
  int num_steps_ = 0;
  int depth_ = 0;
};

// Whether `value` keeps the keyword, whose argument in `schema` is `argument`.
using KeywordCheck = bool (*)(SchemaCheck& check, const nlohmann::json& schema,
                              const nlohmann::json& argument, const nlohmann::json& value);
// Null: the keyword checks nothing by itself.
KeywordCheck keyword_check(std::string_view keyword);

}  // namespace tessera
