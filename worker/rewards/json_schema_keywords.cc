#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/rewards/json_schema_check.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Quotients are rounded: 0.3 is a multiple of 0.1.
constexpr double kQuotientError = 1e-9;

bool is_type(const std::string& type, const Json& value) {
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
  }
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "boolean") return value.is_boolean();
  return value.is_null();
}

bool check_type(SchemaCheck&, const Json&, const Json& type, const Json& value) {
  if (type.is_string()) return is_type(type, value);
  return std::any_of(type.begin(), type.end(), [&](const Json& t) { return is_type(t, value); });
}

bool check_enum(SchemaCheck&, const Json&, const Json& values, const Json& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool check_const(SchemaCheck&, const Json&, const Json& constant, const Json& value) {
  return constant == value;
}

bool check_multiple(SchemaCheck&, const Json&, const Json& unit, const Json& value) {
  if (!value.is_number()) return true;
  if (unit.is_number_unsigned() && value.is_number_unsigned())
    return value.get<uint64_t>() % unit.get<uint64_t>() == 0;
  const double quotient = value.get<double>() / unit.get<double>();
  return std::isfinite(quotient) && std::abs(quotient - std::round(quotient)) <=
                                        kQuotientError * std::max(1.0, std::abs(quotient));
}

template <typename Compare>
bool check_bound(SchemaCheck&, const Json&, const Json& bound, const Json& value) {
  return !value.is_number() || Compare()(value, bound);
}

int64_t num_characters(const Json& text) {
  const auto& bytes = text.get_ref<const std::string&>();
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// Sizes of strings, arrays or objects.
template <Json::value_t type, bool is_most>
bool check_size(SchemaCheck&, const Json&, const Json& bound, const Json& value) {
  if (value.type() != type) return true;
  const auto size = static_cast<double>(
      type == Json::value_t::string ? num_characters(value) : static_cast<int64_t>(value.size()));
  return is_most ? size <= bound.get<double>() : size >= bound.get<double>();
}

bool check_pattern(SchemaCheck& check, const Json&, const Json& pattern, const Json& value) {
  return !value.is_string() || check.matches(pattern, value.get_ref<const std::string&>());
}

bool check_items(SchemaCheck& check, const Json& schema, const Json& items, const Json& value) {
  if (!value.is_array()) return true;
  const auto rest = schema.find("additionalItems");
  for (size_t i = 0; i < value.size(); ++i) {
    const bool is_listed = !items.is_array() || i < items.size();
    if (!is_listed && rest == schema.end()) return true;
    if (!check.is_valid(!is_listed ? *rest : items.is_array() ? items[i] : items, value[i]))
      return false;
  }
  return true;
}

bool check_unique(SchemaCheck&, const Json&, const Json& is_unique, const Json& value) {
  if (!value.is_array() || !is_unique.get<bool>()) return true;
  std::vector<const Json*> sorted;
  for (const Json& item : value) sorted.push_back(&item);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return *a < *b; });
  return std::adjacent_find(sorted.begin(), sorted.end(),
                            [](auto* a, auto* b) { return *a == *b; }) == sorted.end();
}

bool check_contains(SchemaCheck& check, const Json&, const Json& wanted, const Json& value) {
  return !value.is_array() || std::any_of(value.begin(), value.end(), [&](const Json& item) {
    return check.is_valid(wanted, item);
  });
}

bool check_required(SchemaCheck&, const Json&, const Json& names, const Json& value) {
  return !value.is_object() || std::all_of(names.begin(), names.end(), [&](const Json& name) {
    return value.contains(name.get_ref<const std::string&>());
  });
}

// properties, patternProperties and additionalProperties are one check, made once.
bool check_members(SchemaCheck& check, const Json& schema, const Json& value) {
  if (!value.is_object()) return true;
  const auto member = [&](const char* name) {
    const auto found = schema.find(name);
    return found == schema.end() ? nullptr : &*found;
  };
  const Json* listed = member("properties");
  const Json* patterns = member("patternProperties");
  const Json* rest = member("additionalProperties");
  for (const auto& [name, item] : value.items()) {
    bool is_known = false;
    if (listed != nullptr && listed->contains(name)) {
      is_known = true;
      if (!check.is_valid((*listed)[name], item)) return false;
    }
    if (patterns != nullptr) {
      for (const auto& [pattern, wanted] : patterns->items()) {
        if (!check.matches(pattern, name)) continue;
        is_known = true;
        if (!check.is_valid(wanted, item)) return false;
      }
    }
    if (!is_known && rest != nullptr && !check.is_valid(*rest, item)) return false;
  }
  return true;
}

bool check_properties(SchemaCheck& check, const Json& schema, const Json&, const Json& value) {
  return check_members(check, schema, value);
}

bool check_pattern_properties(SchemaCheck& check, const Json& schema, const Json&,
                              const Json& value) {
  return schema.contains("properties") || check_members(check, schema, value);
}

bool check_additional_properties(SchemaCheck& check, const Json& schema, const Json&,
                                 const Json& value) {
  return schema.contains("properties") || schema.contains("patternProperties") ||
         check_members(check, schema, value);
}

bool check_property_names(SchemaCheck& check, const Json&, const Json& wanted, const Json& value) {
  if (!value.is_object()) return true;
  for (const auto& [name, item] : value.items()) {
    if (!check.is_valid(wanted, name)) return false;
  }
  return true;
}

bool check_dependencies(SchemaCheck& check, const Json& schema, const Json& dependencies,
                        const Json& value) {
  if (!value.is_object()) return true;
  for (const auto& [name, needed] : dependencies.items()) {
    if (!value.contains(name)) continue;
    const bool is_met = needed.is_array() ? check_required(check, schema, needed, value)
                                          : check.is_valid(needed, value);
    if (!is_met) return false;
  }
  return true;
}

bool check_if(SchemaCheck& check, const Json& schema, const Json& condition, const Json& value) {
  const auto branch = schema.find(check.is_valid(condition, value) ? "then" : "else");
  return branch == schema.end() || check.is_valid(*branch, value);
}

int64_t num_valid(SchemaCheck& check, const Json& schemas, const Json& value) {
  return std::count_if(schemas.begin(), schemas.end(),
                       [&](const Json& schema) { return check.is_valid(schema, value); });
}

bool check_all_of(SchemaCheck& check, const Json&, const Json& schemas, const Json& value) {
  return num_valid(check, schemas, value) == static_cast<int64_t>(schemas.size());
}

bool check_any_of(SchemaCheck& check, const Json&, const Json& schemas, const Json& value) {
  return num_valid(check, schemas, value) > 0;
}

bool check_one_of(SchemaCheck& check, const Json&, const Json& schemas, const Json& value) {
  return num_valid(check, schemas, value) == 1;
}

bool check_not(SchemaCheck& check, const Json&, const Json& schema, const Json& value) {
  return !check.is_valid(schema, value);
}

struct Row {
  std::string_view keyword;
  KeywordCheck check;
};

constexpr Row kKeywords[] = {
    {"additionalProperties", check_additional_properties},
    {"allOf", check_all_of},
    {"anyOf", check_any_of},
    {"const", check_const},
    {"contains", check_contains},
    {"dependencies", check_dependencies},
    {"enum", check_enum},
    {"exclusiveMaximum", check_bound<std::less<>>},
    {"exclusiveMinimum", check_bound<std::greater<>>},
    {"if", check_if},
    {"items", check_items},
    {"maxItems", check_size<Json::value_t::array, true>},
    {"maxLength", check_size<Json::value_t::string, true>},
    {"maxProperties", check_size<Json::value_t::object, true>},
    {"maximum", check_bound<std::less_equal<>>},
    {"minItems", check_size<Json::value_t::array, false>},
    {"minLength", check_size<Json::value_t::string, false>},
    {"minProperties", check_size<Json::value_t::object, false>},
    {"minimum", check_bound<std::greater_equal<>>},
    {"multipleOf", check_multiple},
    {"not", check_not},
    {"oneOf", check_one_of},
    {"pattern", check_pattern},
    {"patternProperties", check_pattern_properties},
    {"properties", check_properties},
    {"propertyNames", check_property_names},
    {"required", check_required},
    {"type", check_type},
    {"uniqueItems", check_unique},
};

}  // namespace

KeywordCheck keyword_check(std::string_view keyword) {
  const auto* row = std::find_if(std::begin(kKeywords), std::end(kKeywords),
                                 [&](const Row& r) { return r.keyword == keyword; });
  return row == std::end(kKeywords) ? nullptr : row->check;
}

}  // namespace tessera
