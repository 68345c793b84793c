// JSON Schema: the official tests of draft 7, and what is beyond them.
#include "worker/rewards/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string error_of(const char* schema) {
  try {
    JsonSchema(Json::parse(schema));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// Schemas that refer to other files, or give a part of theirs another name, which are refused.
bool refers_elsewhere(const Json& schema) {
  if (!schema.is_structured()) return false;
  const auto is_elsewhere = [&](const char* key) {
    const auto found = schema.find(key);
    return found != schema.end() && found->is_string() &&
           !found->get_ref<const std::string&>().starts_with('#');
  };
  if (schema.is_object() && (is_elsewhere("$ref") || is_elsewhere("$id"))) return true;
  return std::any_of(schema.begin(), schema.end(), refers_elsewhere);
}

TEST(JsonSchema, KeepsTheOfficialTestsOfDraft7) {
  int num_tests = 0, num_refused = 0;
  for (const auto& file : std::filesystem::directory_iterator(JSON_SCHEMA_TESTS)) {
    if (file.path().extension() != ".json") continue;
    std::ifstream stream(file.path());
    for (const Json& group : Json::parse(stream)) {
      if (refers_elsewhere(group["schema"])) {
        ++num_refused;
        continue;
      }
      const JsonSchema schema(group["schema"]);
      for (const Json& test : group["tests"]) {
        EXPECT_EQ(schema.allows(test["data"]), test["valid"].get<bool>())
            << file.path().filename() << ": " << group["description"] << ": "
            << test["description"];
        ++num_tests;
      }
    }
  }
  EXPECT_GT(num_tests, 400);
  EXPECT_LT(num_refused, 20);
}

TEST(JsonSchema, FindsDefinitionsByPointerAndByName) {
  const JsonSchema schema(Json::parse(R"({
    "properties": {"a": {"$ref": "#/$defs/a~1b%25"}, "b": {"$ref": "#named"}},
    "$defs": {"a/b%": {"type": "integer"}},
    "definitions": {"x": {"$id": "#named", "type": "string"}}})"));
  EXPECT_EQ(schema.allows(Json::parse(R"({"a": 1, "b": "x"})")), true);
  EXPECT_EQ(schema.allows(Json::parse(R"({"a": "x"})")), false);
  EXPECT_EQ(schema.allows(Json::parse(R"({"b": 1})")), false);
}

TEST(JsonSchema, GivesUpOnWhatHasNoEnd) {
  EXPECT_EQ(JsonSchema(Json::parse(R"({"anyOf": [{"$ref": "#"}]})")).allows(1), std::nullopt);
  const JsonSchema pattern(Json::parse(R"({"pattern": "^(a+)+$"})"));
  EXPECT_EQ(pattern.allows(std::string(5000, 'a') + "b"), std::nullopt);
  EXPECT_EQ(pattern.allows(std::string(1 << 20, 'a')), true) << "long is not deep";
}

TEST(JsonSchema, NamesThePlaceOfAMistake) {
  EXPECT_EQ(error_of("[]"), "# is no schema of draft 7");
  EXPECT_EQ(error_of(R"({"items": [{"minLength": -1}]})"), "#/items/0 is no schema of draft 7");
  EXPECT_EQ(error_of(R"({"not": {"pattern": "("}})"),
            "#/not/pattern is \"(\": missing closing parenthesis at offset 1");
  EXPECT_EQ(error_of(R"({"patternProperties": {"[": true}})").substr(0, 27),
            "#/patternProperties is \"[\":");
  EXPECT_EQ(error_of(R"({"anyOf": [{"$ref": "other.json"}]})"),
            "#/anyOf/0 refers to \"other.json\", must refer to a schema of the same file, as in "
            "#/definitions/NAME");
  EXPECT_THAT(error_of(R"({"$ref": "#/definitions/x"})"), HasSubstr("# refers to"));
  EXPECT_EQ(error_of(R"({"definitions": {"x": {"prefixItems": []}}})"),
            "#/definitions/x has prefixItems, which draft 7 does not have");
  EXPECT_THAT(error_of(R"({"$schema": "draft/2020-12/schema"})"), HasSubstr("must be of draft 7"));
  EXPECT_THAT(error_of(R"({"items": {"$id": "x.json"}})"), HasSubstr("#/items has $id"));
  EXPECT_EQ(error_of(R"({"properties": {"prefixItems": {"type": "string"}}})"), "")
      << "a member's name is no keyword";
}

TEST(ParseJson, TakesOneValueThatIsNotTooDeep) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonNesting)));
  EXPECT_FALSE(parse_json(nested(kMaxJsonNesting + 2)));
  EXPECT_FALSE(parse_json(nested(1'000'000)));
  EXPECT_FALSE(parse_json("1 2"));
  EXPECT_FALSE(parse_json(""));
  EXPECT_FALSE(parse_json("\"\xff\""));
  EXPECT_EQ(parse_json(" null "), Json());
}

}  // namespace
}  // namespace tessera
