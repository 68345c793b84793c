#include "worker/data/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

constexpr int kMaxDepth = 128;  // of nested containers

constexpr int64_t kMaxWeight = 1 << 24;

void add(const Value& content, Measure& whole) {
  const Measure measure = content.measure();
  whole.weight += measure.weight;
  whole.depth = std::max(whole.depth, measure.depth + 1);
  if (whole.weight > kMaxWeight) throw Error("a value becomes too large");
  if (whole.depth > kMaxDepth) throw Error("a value becomes nested too deep");
}

std::string joined_reprs(const std::vector<Value>& items, size_t begin, int depth) {
  std::string text;
  for (size_t i = begin; i < items.size(); ++i) {
    if (i > begin) text += ", ";
    text += repr(items[i], depth);
    check_text_size(text.size());
  }
  return text;
}

std::string sequence_repr(const Sequence& sequence, int depth) {
  const std::string items = joined_reprs(sequence.items, sequence.taken, depth + 1);
  switch (sequence.kind) {
    case SequenceKind::kList:
      return "[" + items + "]";
    case SequenceKind::kTuple:
      return "(" + items + (sequence.items.size() == 1 ? ",)" : ")");
    case SequenceKind::kKeys:
      return "dict_keys([" + items + "])";
    case SequenceKind::kValues:
      return "dict_values([" + items + "])";
    case SequenceKind::kItems:
      return "dict_items([" + items + "])";
    case SequenceKind::kRange:
    case SequenceKind::kIterator:
      break;
  }
  throw Error("a range or generator has no text; make it a list first");
}

std::string dict_repr(const Dict& dict, int depth) {
  std::string text = "{";
  for (const auto& [key, value] : dict.entries) {
    if (text.size() > 1) text += ", ";
    text += repr(key, depth + 1) + ": " + repr(value, depth + 1);
    check_text_size(text.size());
  }
  return text + "}";
}

// Of two lists or two tuples.
bool same_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), equals);
}

bool same_entries(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other && equals(entry.second, *other);
  });
}

Value from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxDepth) throw Error("the data is nested too deep");
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::string:
      return json.get_ref<const std::string&>();
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        throw Error("the integer " + json.dump() + " is too large");
      }
      return json.get<int64_t>();
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, depth + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      dict->entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        dict->entries.emplace_back(key, from_json(item, depth + 1));
      }
      return dict;
    }
    default:
      return Value();
  }
}

}  // namespace

Value::Value(std::shared_ptr<Sequence> value) : data_(value) {
  if (value->measure.weight > 0) return;
  Measure measure{1, 1};
  for (const Value& item : value->items) add(item, measure);
  value->measure = measure;
}

Value::Value(std::shared_ptr<Dict> value) : data_(value) {
  if (value->measure.weight > 0) return;
  Measure measure{1, 1};
  for (const auto& [key, item] : value->entries) {
    add(key, measure);
    add(item, measure);
  }
  value->measure = measure;
}

Measure Value::measure() const {
  if (const auto* text = string()) return {1 + static_cast<int64_t>(text->size() / 64), 0};
  if (const auto* items = sequence()) return items->measure;
  if (const auto* entries = dict()) return entries->measure;
  return {1, 0};
}

Value Value::undefined(std::string problem) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(problem))};
  return value;
}

Value Value::markup(std::string text) {
  Value value(std::move(text));
  value.is_markup_ = true;
  return value;
}

Value Value::list(std::vector<Value> items) {
  return std::make_shared<Sequence>(Sequence{SequenceKind::kList, std::move(items)});
}

Value Value::tuple(std::vector<Value> items) {
  return std::make_shared<Sequence>(Sequence{SequenceKind::kTuple, std::move(items)});
}

Value Value::iterator(std::vector<Value> items) {
  return std::make_shared<Sequence>(Sequence{SequenceKind::kIterator, std::move(items)});
}

const std::string* Value::string() const {
  const auto* pointer = std::get_if<String>(&data_);
  return pointer ? pointer->get() : nullptr;
}

Sequence* Value::sequence() const {
  const auto* pointer = std::get_if<std::shared_ptr<Sequence>>(&data_);
  return pointer ? pointer->get() : nullptr;
}

Dict* Value::dict() const {
  const auto* pointer = std::get_if<std::shared_ptr<Dict>>(&data_);
  return pointer ? pointer->get() : nullptr;
}

Object* Value::object() const {
  const auto* pointer = std::get_if<std::shared_ptr<Object>>(&data_);
  return pointer ? pointer->get() : nullptr;
}

const std::shared_ptr<Dict>& Value::shared_dict() const {
  return std::get<std::shared_ptr<Dict>>(data_);
}

std::optional<int64_t> Value::integer() const {
  if (const auto* flag = std::get_if<bool>(&data_)) return *flag ? 1 : 0;
  if (const auto* integer = std::get_if<int64_t>(&data_)) return *integer;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* real = std::get_if<double>(&data_)) return *real;
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  if (const auto* text = key.string()) return find_name(*text);
  for (const auto& entry : entries) {
    if (equals(entry.first, key)) return &entry.second;
  }
  return nullptr;
}

const Value* Dict::find_name(std::string_view key) const {
  for (const auto& entry : entries) {
    const auto* text = entry.first.string();
    if (text && *text == key) return &entry.second;
  }
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  if (const Value* there = find(key)) {
    *const_cast<Value*>(there) = std::move(value);
  } else {
    entries.emplace_back(key, std::move(value));
  }
}

Value Object::call(Frame&, const Arguments&) { throw Error(repr(0) + " cannot be called"); }

std::optional<Value> Object::attribute(std::string_view) const { return std::nullopt; }

Value from_json(const nlohmann::ordered_json& json) { return from_json(json, 0); }

bool truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (const auto* text = value.string()) return !text->empty();
  if (const auto* dict = value.dict()) return !dict->entries.empty();
  if (const auto* sequence = value.sequence()) {
    return sequence->kind == SequenceKind::kIterator || !sequence->items.empty();
  }
  return true;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[40];
  const auto end =
      std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific);
  const std::string scientific(digits, end.ptr);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  // Python's repr takes the exponent form outside of this range.
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed =
      std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::fixed);
  std::string text(digits, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string to_text(const Value& value) {
  if (const auto* text = value.string()) return *text;
  if (value.is_undefined()) return "";
  return repr(value);
}

std::string repr(const Value& value, int depth) {
  // Values end, but namespaces in them may hold each other.
  if (depth > 2 * kMaxDepth) throw Error("a value is nested too deep to be printed");
  if (const auto* text = value.string()) return python_quoted(*text);
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "None";
  if (value.is_bool()) return *value.integer() ? "True" : "False";
  if (const auto integer = value.integer()) return std::to_string(*integer);
  if (const auto number = value.number()) return float_text(*number);
  if (const auto* sequence = value.sequence()) return sequence_repr(*sequence, depth);
  if (const auto* dict = value.dict()) return dict_repr(*dict, depth);
  return value.object()->repr(depth);
}

std::string type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return "str";
  if (value.is_dict()) return "dict";
  if (value.object()) return "object";
  switch (value.sequence()->kind) {
    case SequenceKind::kList:
      return "list";
    case SequenceKind::kTuple:
      return "tuple";
    case SequenceKind::kRange:
      return "range";
    case SequenceKind::kIterator:
      return "generator";
    default:
      return "dict view";
  }
}

bool equals(const Value& a, const Value& b) {
  const auto x = a.number();
  const auto y = b.number();
  if (x && y) return a.integer() && b.integer() ? *a.integer() == *b.integer() : *x == *y;
  if (a.data().index() != b.data().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const auto* text = a.string()) return *text == *b.string();
  if (const auto* sequence = a.sequence()) {
    if (sequence == b.sequence()) return true;
    return sequence->kind == b.sequence()->kind && sequence->kind != SequenceKind::kIterator &&
           same_items(sequence->items, b.sequence()->items);
  }
  if (const auto* dict = a.dict()) return dict == b.dict() || same_entries(*dict, *b.dict());
  return a.object() == b.object();
}

bool less(const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  const auto x = a.number();
  const auto y = b.number();
  if (x && y) return a.integer() && b.integer() ? *a.integer() < *b.integer() : *x < *y;
  // Bytes of UTF-8 are in the order of code points.
  if (a.is_string() && b.is_string()) return *a.string() < *b.string();
  const auto* s = a.sequence();
  const auto* t = b.sequence();
  if (s && t && s->kind == t->kind && s->is_indexed() && s->kind != SequenceKind::kRange) {
    const auto [i, j] =
        std::mismatch(s->items.begin(), s->items.end(), t->items.begin(), t->items.end(), equals);
    if (i == s->items.end() || j == t->items.end()) return s->items.size() < t->items.size();
    return less(*i, *j);
  }
  throw Error("there is no order between " + type_name(a) + " and " + type_name(b));
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const auto* text = value.string()) return static_cast<int64_t>(num_code_points(*text));
  if (const auto* dict = value.dict()) return static_cast<int64_t>(dict->entries.size());
  const auto* sequence = value.sequence();
  if (sequence && sequence->kind != SequenceKind::kIterator) {
    return static_cast<int64_t>(sequence->items.size());
  }
  throw Error("a value of type " + type_name(value) + " has no length");
}

std::vector<Value> elements(const Value& value) {
  if (value.is_undefined()) return {};
  std::vector<Value> items;
  if (const auto* text = value.string()) {
    for (const auto character : code_points(*text)) items.emplace_back(character);
    return items;
  }
  if (const auto* dict = value.dict()) {
    items.reserve(dict->entries.size());
    for (const auto& entry : dict->entries) items.push_back(entry.first);
    return items;
  }
  if (auto* sequence = value.sequence()) {
    if (!sequence->problem.empty()) throw Error(sequence->problem);
    if (sequence->kind != SequenceKind::kIterator) return sequence->items;
    items.assign(sequence->items.begin() + static_cast<std::ptrdiff_t>(sequence->taken),
                 sequence->items.end());
    sequence->taken = sequence->items.size();
    return items;
  }
  throw Error("a value of type " + type_name(value) + " cannot be iterated");
}

bool contains(const Value& container, const Value& item) {
  if (const auto* text = container.string()) {
    if (!item.is_string()) {
      require_defined(item);
      throw Error("only a string can be in a string, not a value of type " + type_name(item));
    }
    return text->find(*item.string()) != std::string::npos;
  }
  if (const auto* dict = container.dict()) {
    if (item.dict() || (item.sequence() && item.sequence()->kind == SequenceKind::kList)) {
      throw Error("a value of type " + type_name(item) + " is no key of a dict");
    }
    return dict->find(item) != nullptr;
  }
  const auto items = elements(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& element) { return equals(element, item); });
}

void require_defined(const Value& value) {
  if (const auto* undefined = std::get_if<Undefined>(&value.data())) {
    throw Error(*undefined->problem);
  }
}

}  // namespace tessera::jinja
