#include "worker/data/jinja/tests.h"

#include "worker/data/jinja/filters.h"
#include "worker/data/jinja/operators.h"
#include "worker/data/jinja/parameters.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

using Test = bool (*)(const Value& value);

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_dict() || value.sequence();
}

// Has a length and can be indexed.
bool is_sequence(const Value& value) {
  const auto* sequence = value.sequence();
  return value.is_undefined() || value.is_string() || value.is_dict() ||
         (sequence && sequence->is_indexed());
}

bool is_callable(const Value& value) {
  return value.is_undefined() || (value.object() && value.object()->is_callable());
}

// value % 2 == remainder, whatever % does to the type.
bool has_remainder(const Value& value, int64_t remainder) {
  return equals(calculate(Operator::kModulo, value, int64_t{2}), remainder);
}

// Compares text in that case with itself, as str.islower does.
bool is_cased(const Value& value, bool wants_upper) {
  const auto* sequence = value.sequence();
  // What Python prints for one has small letters.
  if (sequence && sequence->kind == SequenceKind::kIterator) return !wants_upper;
  const std::string text = to_text(value);
  return text == (wants_upper ? upper(text) : lower(text)) && upper(text) != lower(text);
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && truthy(v); }},
    {"false", [](const Value& v) { return v.is_bool() && !truthy(v); }},
    {"integer", [](const Value& v) { return v.is_int(); }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"number", [](const Value& v) { return v.number().has_value(); }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"mapping", [](const Value& v) { return v.is_dict(); }},
    {"sequence", is_sequence},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"odd", [](const Value& v) { return has_remainder(v, 1); }},
    {"even", [](const Value& v) { return has_remainder(v, 0); }},
    {"lower", [](const Value& v) { return is_cased(v, false); }},
    {"upper", [](const Value& v) { return is_cased(v, true); }},
    {"escaped", [](const Value&) { return false; }},
    {"filter", [](const Value& v) { return v.is_string() && is_filter(*v.string()); }},
    {"test", [](const Value& v) { return v.is_string() && is_test(*v.string()); }},
};

constexpr std::pair<std::string_view, Relation> kRelations[] = {
    {"==", Relation::kEqual},
    {"eq", Relation::kEqual},
    {"equalto", Relation::kEqual},
    {"!=", Relation::kNotEqual},
    {"ne", Relation::kNotEqual},
    {"<", Relation::kLess},
    {"lt", Relation::kLess},
    {"lessthan", Relation::kLess},
    {"<=", Relation::kLessEqual},
    {"le", Relation::kLessEqual},
    {">", Relation::kGreater},
    {"gt", Relation::kGreater},
    {"greaterthan", Relation::kGreater},
    {">=", Relation::kGreaterEqual},
    {"ge", Relation::kGreaterEqual},
    {"in", Relation::kIn},
};

// `is`: small values are the same where they are equal and of one type.
bool is_same(const Value& a, const Value& b) {
  if (a.data().index() != b.data().index() || a.is_float()) return false;
  if (a.sequence()) return a.sequence() == b.sequence();
  if (a.is_dict()) return a.dict() == b.dict();
  return equals(a, b);
}

}  // namespace

bool is_test(std::string_view name) {
  if (name == "divisibleby" || name == "sameas") return true;
  for (const auto& test : kTests) {
    if (test.first == name) return true;
  }
  for (const auto& relation : kRelations) {
    if (relation.first == name) return true;
  }
  return false;
}

bool apply_test(std::string_view name, const Value& value, const Arguments& arguments) {
  for (const auto& [test, body] : kTests) {
    if (test != name) continue;
    const Parameters none(name, arguments, {});
    return body(value);
  }
  const Parameters parameters(name, arguments, {"other"});
  for (const auto& [test, relation] : kRelations) {
    if (test == name) return compare(relation, value, parameters.at(0));
  }
  if (name == "sameas") return is_same(value, parameters.at(0));
  if (name == "divisibleby") {
    return !truthy(calculate(Operator::kModulo, value, parameters.at(0)));
  }
  throw Error("there is no test '" + std::string(name) + "'");
}

}  // namespace tessera::jinja
