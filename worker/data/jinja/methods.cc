#include "worker/data/jinja/methods.h"

#include <algorithm>
#include <cmath>

#include "worker/data/jinja/members.h"
#include "worker/data/jinja/parameters.h"
#include "worker/data/jinja/string_methods.h"

namespace tessera::jinja {
namespace {

std::shared_ptr<Sequence> view(SequenceKind kind, std::vector<Value> items) {
  return std::make_shared<Sequence>(Sequence{kind, std::move(items)});
}

Value get(const Dict& dict, const Arguments& arguments) {
  const Parameters parameters("get()", arguments, {"key", "default"});
  const Value* there = dict.find(parameters.at(0));
  return there ? *there : parameters.value(1, Value());
}

std::vector<Value> pairs(const Dict& dict) {
  std::vector<Value> items;
  items.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) items.push_back(Value::tuple({key, value}));
  return items;
}

std::vector<Value> column(const Dict& dict, bool of_keys) {
  std::vector<Value> items;
  items.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) items.push_back(of_keys ? key : value);
  return items;
}

Value call_dict(const std::string& name, const Dict& dict, const Arguments& arguments) {
  if (name == "get") return get(dict, arguments);
  const Parameters none(name + "()", arguments, {});
  if (name == "items") return view(SequenceKind::kItems, pairs(dict));
  if (name == "keys") return view(SequenceKind::kKeys, column(dict, true));
  if (name == "values") return view(SequenceKind::kValues, column(dict, false));
  return std::make_shared<Dict>(dict);  // copy
}

Value call_sequence(const std::string& name, const Sequence& sequence, const Arguments& arguments) {
  if (name == "copy") return Value::list(sequence.items);
  const Parameters parameters(name + "()", arguments, {"value"});
  const auto is_it = [&](const Value& item) { return equals(item, parameters.at(0)); };
  const auto begin = sequence.items.begin();
  if (name == "count") {
    return static_cast<int64_t>(std::count_if(begin, sequence.items.end(), is_it));
  }
  const auto place = std::find_if(begin, sequence.items.end(), is_it);
  if (place == sequence.items.end()) throw Error("index() does not find the value");
  return static_cast<int64_t>(place - begin);
}

constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values", "copy"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};

template <size_t N>
bool is_among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value unsafe(std::string_view name) {
  return Value::undefined("'" + std::string(name) + "' would change a value; templates may not");
}

}  // namespace

std::optional<Value> method_of(const Value& value, std::string_view name) {
  const std::string method(name);
  if (value.is_string()) {
    if (!is_string_method(name)) return std::nullopt;
    return make_function(method, [value, method](Frame&, const Arguments& arguments) {
      Value result = call_string_method(method, *value.string(), arguments);
      return value.is_markup() && result.is_string() ? Value::markup(*result.string()) : result;
    });
  }
  if (value.is_dict()) {
    if (is_among(kDictChanges, name)) return unsafe(name);
    if (!is_among(kDictMethods, name)) return std::nullopt;
    return make_function(method, [value, method](Frame&, const Arguments& arguments) {
      return call_dict(method, *value.dict(), arguments);
    });
  }
  const auto* sequence = value.sequence();
  if (sequence && sequence->is_indexed()) {
    const bool is_list = sequence->kind == SequenceKind::kList;
    if (is_list && is_among(kListChanges, name)) return unsafe(name);
    if (!is_among(kListMethods, name) || (!is_list && name == "copy")) return std::nullopt;
    return make_function(method, [value, method](Frame&, const Arguments& arguments) {
      return call_sequence(method, *value.sequence(), arguments);
    });
  }
  if (value.is_float() && name == "is_integer") {
    return make_function(method, [value](Frame&, const Arguments&) -> Value {
      return std::nearbyint(*value.number()) == *value.number();
    });
  }
  return std::nullopt;
}

}  // namespace tessera::jinja
