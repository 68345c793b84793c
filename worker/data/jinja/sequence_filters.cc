// Filters of lists, dicts and what else can be iterated.
#include <algorithm>

#include "worker/data/jinja/filters.h"
#include "worker/data/jinja/members.h"
#include "worker/data/jinja/operators.h"
#include "worker/data/jinja/parameters.h"
#include "worker/data/jinja/tests.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

// Reads "a.b.0" out of an item, each part as item[part].
class Getter {
 public:
  explicit Getter(const Value& attribute, std::optional<Value> absent = {},
                  bool ignores_case = false)
      : absent_(std::move(absent)), ignores_case_(ignores_case) {
    if (const auto* path = attribute.string()) {
      for (const auto part : split(*path, ".", -1)) parts_.push_back(part_of(part));
    } else if (!attribute.is_none()) {
      parts_.push_back(attribute);
    }
  }

  Value operator()(const Value& item) const {
    Value value = item;
    for (const auto& part : parts_) {
      value = item_of(value, part);
      if (absent_ && value.is_undefined()) value = *absent_;
    }
    return ignores_case_ && value.is_string() ? Value(lower(*value.string())) : value;
  }

 private:
  static Value part_of(std::string_view part) {
    const bool is_index =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    return is_index ? Value(int64_t{std::stoll(std::string(part))}) : Value(part);
  }

  std::vector<Value> parts_;
  std::optional<Value> absent_;
  bool ignores_case_;
};

// As sorted() with a key. The order may fail half way, which std::stable_sort must not see.
std::vector<Value> sorted(std::vector<Value> items, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t i = 1; i < keys.size(); ++i) less(keys[i - 1], keys[i]);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const size_t i : order) result.push_back(std::move(items[i]));
  return result;
}

std::vector<Value> keys_of(const std::vector<Value>& items, const Getter& getter) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const auto& item : items) keys.push_back(getter(item));
  return keys;
}

Value sort(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  auto items = elements(input);
  const bool ignores_case = !parameters.flag(1, false);
  const Value attribute = parameters.value(2, Value());
  std::vector<std::vector<Value>> columns(items.size());
  std::vector<Value> attributes{attribute};
  if (attribute.is_string()) {
    attributes.clear();
    for (const auto name : split(*attribute.string(), ",", -1)) attributes.emplace_back(name);
  }
  for (const auto& name : attributes) {
    const Getter getter(name, {}, ignores_case);
    for (size_t i = 0; i < items.size(); ++i) columns[i].push_back(getter(items[i]));
  }
  std::vector<Value> keys;
  for (auto& column : columns) keys.push_back(Value::list(std::move(column)));
  return Value::list(sorted(std::move(items), keys, parameters.flag(0, false)));
}

// A generator fails only when it is read.
template <typename Body>
Value lazily(Body body) {
  try {
    return Value::iterator(body());
  } catch (const Error& error) {
    auto failing = std::make_shared<Sequence>();
    failing->kind = SequenceKind::kIterator;
    failing->problem = error.what();
    return failing;
  }
}

std::vector<Value> dict_pairs(const Value& value) {
  std::vector<Value> pairs;
  for (const auto& [key, item] : value.dict()->entries) pairs.push_back(Value::tuple({key, item}));
  return pairs;
}

Value dict_sort(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = parameters.has(1) ? parameters.string(1) : "key";
  if (by != "key" && by != "value") throw Error("dictsort sorts by 'key' or by 'value'");
  require_defined(input);
  if (!input.is_dict()) throw Error("dictsort needs a dict, not a " + type_name(input));
  auto pairs = dict_pairs(input);
  const Getter getter(Value(int64_t{by == "value"}), {}, !parameters.flag(0, false));
  const auto keys = keys_of(pairs, getter);
  return Value::list(sorted(std::move(pairs), keys, parameters.flag(2, false)));
}

Value items(Frame&, const Value& input, const Arguments&) {
  return lazily([&] {
    if (input.is_undefined()) return std::vector<Value>();
    if (!input.is_dict()) throw Error("items needs a dict, not a " + type_name(input));
    return dict_pairs(input);
  });
}

Value join(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"d", "attribute"});
  const std::string separator = parameters.has(0) ? to_text(parameters.at(0)) : "";
  const Getter getter(parameters.value(1, Value()));
  std::string out;
  bool is_first = true;
  for (const auto& item : elements(input)) {
    if (!is_first) out += separator;
    out += to_text(getter(item));
    check_text_size(out.size());
    is_first = false;
  }
  return out;
}

Value length_of(Frame&, const Value& input, const Arguments&) { return length(input); }
Value list(Frame&, const Value& input, const Arguments&) { return Value::list(elements(input)); }

Value first(Frame&, const Value& input, const Arguments&) {
  auto* sequence = input.sequence();
  if (sequence && sequence->kind == SequenceKind::kIterator && sequence->problem.empty()) {
    if (sequence->taken < sequence->items.size()) return sequence->items[sequence->taken++];
    return Value::undefined("there is no first item");
  }
  const auto all = elements(input);
  return all.empty() ? Value::undefined("there is no first item") : all.front();
}

bool is_reversible(const Value& value) {
  const auto* sequence = value.sequence();
  return value.is_string() || value.is_dict() ||
         (sequence && sequence->kind != SequenceKind::kIterator);
}

Value last(Frame&, const Value& input, const Arguments&) {
  if (!is_reversible(input) && !input.is_undefined()) {
    throw Error("last needs a list, not a " + type_name(input));
  }
  const auto all = elements(input);
  return all.empty() ? Value::undefined("there is no last item") : all.back();
}

Value reverse(Frame&, const Value& input, const Arguments&) {
  auto all = elements(input);
  std::reverse(all.begin(), all.end());
  if (input.is_string()) {
    std::string out;
    for (const auto& character : all) out += *character.string();
    return out;
  }
  return is_reversible(input) ? Value::iterator(std::move(all)) : Value::list(std::move(all));
}

Value unique(Frame& frame, const Value& input, const Arguments& arguments) {
  const Parameters parameters("unique", arguments, {"case_sensitive", "attribute"});
  const Getter getter(parameters.value(1, Value()), {}, !parameters.flag(0, false));
  return lazily([&] {
    Dict seen;
    std::vector<Value> kept;
    for (const auto& item : elements(input)) {
      const Value key = getter(item);
      frame.rendering().step(seen.search_steps());
      if (seen.find(key)) continue;
      seen.set(key, true);
      kept.push_back(item);
    }
    return kept;
  });
}

Value extreme(std::string_view name, bool wants_largest, const Value& input,
              const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"case_sensitive", "attribute"});
  const Getter getter(parameters.value(1, Value()), {}, !parameters.flag(0, false));
  const auto all = elements(input);
  if (all.empty()) return Value::undefined("there is no item, the sequence is empty");
  size_t best = 0;
  for (size_t i = 1; i < all.size(); ++i) {
    const Value key = getter(all[i]);
    const Value best_key = getter(all[best]);
    if (wants_largest ? less(best_key, key) : less(key, best_key)) best = i;
  }
  return all[best];
}
Value max(Frame&, const Value& input, const Arguments& arguments) {
  return extreme("max", true, input, arguments);
}
Value min(Frame&, const Value& input, const Arguments& arguments) {
  return extreme("min", false, input, arguments);
}

Value sum(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sum", arguments, {"attribute", "start"});
  const Getter getter(parameters.value(0, Value()));
  Value total = parameters.value(1, int64_t{0});
  if (total.is_string()) throw Error("sum cannot add up strings");
  for (const auto& item : elements(input)) {
    total = calculate(Operator::kAdd, total, getter(item));
  }
  return total;
}

// The arguments from `begin` on, for another filter or test.
Arguments rest_of(const Arguments& arguments, size_t begin) {
  Arguments rest;
  for (size_t i = begin; i < arguments.positional.size(); ++i) {
    rest.positional.push_back(arguments.positional[i]);
  }
  rest.named = arguments.named;
  return rest;
}

Value map(Frame& frame, const Value& input, const Arguments& arguments) {
  return lazily([&] {
    std::vector<Value> mapped;
    if (!truthy(input)) return mapped;  // whatever its type
    if (arguments.positional.empty()) {
      const Parameters parameters("map", arguments, {"attribute", "default"});
      std::optional<Value> absent;
      if (parameters.has(1)) absent = parameters.at(1);
      const Getter getter(parameters.at(0), absent);
      for (const auto& item : elements(input)) mapped.push_back(getter(item));
      return mapped;
    }
    const auto* filter = arguments.positional[0].string();
    if (!filter) throw Error("map needs the name of a filter");
    const Arguments rest = rest_of(arguments, 1);
    for (const auto& item : elements(input)) {
      mapped.push_back(apply_filter(*filter, frame, item, rest));
    }
    return mapped;
  });
}

// select, reject, selectattr and rejectattr.
std::vector<Value> choose(const Value& input, const Arguments& arguments, bool has_attribute,
                          bool keeps) {
  if (!truthy(input)) return {};  // whatever its type
  const auto& positional = arguments.positional;
  const size_t test_place = has_attribute ? 1 : 0;
  if (positional.size() < test_place) throw Error("selectattr needs the name of an attribute");
  const Getter getter(has_attribute ? positional[0] : Value());
  const bool has_test = positional.size() > test_place;
  const std::string* test = has_test ? positional[test_place].string() : nullptr;
  if (has_test && !test) throw Error("select needs the name of a test");
  const Arguments rest = rest_of(arguments, test_place + 1);
  std::vector<Value> kept;
  for (const auto& item : elements(input)) {
    const Value value = getter(item);
    const bool passes = has_test ? apply_test(*test, value, rest) : truthy(value);
    if (passes == keeps) kept.push_back(item);
  }
  return kept;
}
Value select(Frame&, const Value& input, const Arguments& arguments) {
  return lazily([&] { return choose(input, arguments, false, true); });
}
Value reject(Frame&, const Value& input, const Arguments& arguments) {
  return lazily([&] { return choose(input, arguments, false, false); });
}
Value select_attribute(Frame&, const Value& input, const Arguments& arguments) {
  return lazily([&] { return choose(input, arguments, true, true); });
}
Value reject_attribute(Frame&, const Value& input, const Arguments& arguments) {
  return lazily([&] { return choose(input, arguments, true, false); });
}

Value group_by(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("groupby", arguments, {"attribute", "default", "case_sensitive"});
  std::optional<Value> absent;
  if (parameters.has(1) && !parameters.at(1).is_none()) absent = parameters.at(1);
  const bool ignores_case = !parameters.flag(2, false);
  const Getter key(parameters.at(0), absent, ignores_case);
  const Getter shown(parameters.at(0), absent);
  auto all = elements(input);
  const auto keys = keys_of(all, key);
  all = sorted(std::move(all), keys, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin + 1;
    while (end < all.size() && equals(key(all[begin]), key(all[end]))) ++end;
    std::vector<Value> members(all.begin() + static_cast<std::ptrdiff_t>(begin),
                               all.begin() + static_cast<std::ptrdiff_t>(end));
    groups.push_back(Value::tuple({shown(all[begin]), Value::list(std::move(members))}));
    begin = end;
  }
  return Value::list(std::move(groups));
}

std::vector<Value> batches_of(const Value& input, const Arguments& arguments) {
  const Parameters parameters("batch", arguments, {"linecount", "fill_with"});
  parameters.at(0);
  const int64_t size = parameters.integer(0, 1);
  if (size < 1 || size > 1'000'000) throw Error("batch needs a count of 1 or more");
  std::vector<Value> batches;
  std::vector<Value> current;
  for (auto& item : elements(input)) {
    current.push_back(std::move(item));
    if (static_cast<int64_t>(current.size()) < size) continue;
    batches.push_back(Value::list(std::exchange(current, {})));
  }
  if (current.empty()) return batches;
  const Value fill = parameters.value(1, Value());
  if (!fill.is_none()) current.resize(static_cast<size_t>(size), fill);
  batches.push_back(Value::list(std::move(current)));
  return batches;
}
Value batch(Frame&, const Value& input, const Arguments& arguments) {
  return lazily([&] { return batches_of(input, arguments); });
}

constexpr NamedFilter kFilters[] = {
    {"batch", batch},     {"count", length_of},  {"dictsort", dict_sort},
    {"first", first},     {"groupby", group_by}, {"items", items},
    {"join", join},       {"last", last},        {"length", length_of},
    {"list", list},       {"map", map},          {"max", max},
    {"min", min},         {"reject", reject},    {"rejectattr", reject_attribute},
    {"reverse", reverse}, {"select", select},    {"selectattr", select_attribute},
    {"sort", sort},       {"sum", sum},          {"unique", unique},
};

}  // namespace

FilterFunction find_sequence_filter(std::string_view name) {
  for (const auto& filter : kFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace tessera::jinja
