// Values of a chat template, with Python's rules for them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::jinja {

// What a template does wrong, what it raises, or a limit it meets.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Sequence;
struct Dict;
class Object;

// Printed as nothing, false, empty; any other use throws `problem`.
struct Undefined {
  std::shared_ptr<const std::string> problem;
};
struct None {};
using String = std::shared_ptr<const std::string>;  // UTF-8

// What it takes to go through a value: one a scalar or container, more for long text, the contents
// included, as often as they are there.
struct Measure {
  int64_t weight = 0;  // 0: not known yet
  int depth = 0;       // of containers
};

// Immutable but for Namespace objects and iterators that are read; copies are shallow. No value is
// so deep, or so large when it is written out, that going through it would not end: the
// constructors throw Error.
class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, String, std::shared_ptr<Sequence>,
                   std::shared_ptr<Dict>, std::shared_ptr<Object>>;

  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(std::make_shared<const std::string>(std::move(value))) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::shared_ptr<Sequence> value);
  Value(std::shared_ptr<Dict> value);  // which is whole: not to be changed any more
  Value(std::shared_ptr<Object> value) : data_(std::move(value)) {}
  static Value undefined(std::string problem);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  // Text that `safe` or `escape` went over: other text that is added to it gets escaped.
  static Value markup(std::string text);
  // A generator: read once, of no length, always true.
  static Value iterator(std::vector<Value> items);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<String>(data_); }
  bool is_markup() const { return is_markup_; }
  bool is_dict() const { return dict() != nullptr; }

  // Null where the value is of another type.
  const std::string* string() const;
  Sequence* sequence() const;
  Dict* dict() const;
  Object* object() const;
  const std::shared_ptr<Dict>& shared_dict() const;
  // bool and int, as in Python. Empty where it is neither.
  std::optional<int64_t> integer() const;
  // bool, int and float. Empty where it is none of them.
  std::optional<double> number() const;

  const Data& data() const { return data_; }
  Measure measure() const;

 private:
  Data data_;
  bool is_markup_ = false;
};

enum class SequenceKind { kList, kTuple, kRange, kKeys, kValues, kItems, kIterator };

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  size_t taken = 0;     // of an iterator, from the front
  std::string problem;  // of an iterator: what reading it throws; else empty
  Measure measure;
  bool is_indexed() const {
    return kind == SequenceKind::kList || kind == SequenceKind::kTuple ||
           kind == SequenceKind::kRange;
  }
};

// In order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Measure measure;
  const Value* find(const Value& key) const;
  const Value* find_name(std::string_view key) const;
  void set(const Value& key, Value value);
  // Of a rendering's limit, for one search: keys are compared one by one.
  int64_t search_steps() const { return static_cast<int64_t>(entries.size()); }
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Frame;

// Functions, macros, methods, namespaces and loops.
class Object {
 public:
  virtual ~Object() = default;
  // `depth` is how deep it is in what is printed.
  virtual std::string repr(int depth) const = 0;
  virtual bool is_callable() const { return false; }
  virtual Value call(Frame& frame, const Arguments& arguments);
  // Empty where there is none.
  virtual std::optional<Value> attribute(std::string_view name) const;
};

// JSON's types as Python's. Throws Error for an integer outside int64, or too deep a nesting.
Value from_json(const nlohmann::ordered_json& json);

bool truthy(const Value& value);
std::string to_text(const Value& value);  // str()
// Throws Error where namespaces hold themselves.
std::string repr(const Value& value, int depth = 0);
std::string float_text(double value);
std::string type_name(const Value& value);
bool equals(const Value& a, const Value& b);
// a < b; throws Error where Python has no order for the types.
bool less(const Value& a, const Value& b);
// Throws Error where there is no len().
int64_t length(const Value& value);
// What iterating gives, and uses up an iterator. Throws Error where there is no iter().
std::vector<Value> elements(const Value& value);
// `item in container`.
bool contains(const Value& container, const Value& item);
// Throws the problem of an undefined value.
void require_defined(const Value& value);

}  // namespace tessera::jinja
