#include "worker/data/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "worker/data/jinja/format.h"
#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

constexpr size_t kMaxItems = 1'000'000;  // of a list made by * or +

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_types(Operator op, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  throw Error("there is no '" + std::string(kSymbols[static_cast<int>(op)]) + "' between " +
              type_name(left) + " and " + type_name(right));
}

[[noreturn]] void fail_overflow() { throw Error("an integer does not fit in 64 bits"); }

int64_t floor_quotient(int64_t a, int64_t b) {
  if (b == -1) return a == INT64_MIN ? (fail_overflow(), 0) : -a;
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

// In CPython's steps: rounding in between shows in large quotients.
double float_quotient(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (true) {
    if (exponent & 1 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent == 0) return result;
    if (__builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
}

Value calculate_integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return result;
    case Operator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return result;
    case Operator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return result;
    case Operator::kDivide:
      return static_cast<double>(a) / static_cast<double>(b);
    case Operator::kFloorDivide:
      return floor_quotient(a, b);
    case Operator::kModulo:
      return b == -1 ? int64_t{0} : a - floor_quotient(a, b) * b;
    case Operator::kPower:
      if (b < 0 && a == 0) throw Error("a power is no real number");
      if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
      return integer_power(a, b);
  }
  fail_overflow();
}

double calculate_floats(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return a + b;
    case Operator::kSubtract:
      return a - b;
    case Operator::kMultiply:
      return a * b;
    case Operator::kDivide:
      return a / b;
    case Operator::kFloorDivide:
      return float_quotient(a, b);
    case Operator::kModulo:
      return float_modulo(a, b);
    case Operator::kPower:
      return std::pow(a, b);
  }
  return 0;
}

bool divides(Operator op) {
  return op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
}

bool is_list_or_tuple(const Sequence* sequence) {
  return sequence &&
         (sequence->kind == SequenceKind::kList || sequence->kind == SequenceKind::kTuple);
}

Value sequence_of(SequenceKind kind, std::vector<Value> items) {
  return std::make_shared<Sequence>(Sequence{kind, std::move(items)});
}

// text * count and list * count. Empty where that is not what it is.
std::optional<Value> repeated(const Value& value, const Value& count) {
  const auto times = count.integer();
  if (!times) return std::nullopt;
  const auto n = static_cast<size_t>(std::max<int64_t>(0, *times));
  if (const auto* text = value.string()) {
    if (!text->empty() && n > SIZE_MAX / text->size()) throw Error("a text becomes too long");
    check_text_size(n * text->size());
    std::string out;
    out.reserve(n * text->size());
    for (size_t i = 0; i < n && !text->empty(); ++i) out += *text;
    return value.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
  }
  const auto* sequence = value.sequence();
  if (!is_list_or_tuple(sequence)) return std::nullopt;
  const size_t size = sequence->items.size();
  if (size > 0 && n > kMaxItems / size) throw Error("a list becomes too long");
  std::vector<Value> items;
  for (size_t i = 0; i < n && size > 0; ++i) {
    items.insert(items.end(), sequence->items.begin(), sequence->items.end());
  }
  return sequence_of(sequence->kind, std::move(items));
}

std::optional<Value> joined(const Value& left, const Value& right) {
  if (left.is_string() && right.is_string()) {
    check_text_size(left.string()->size() + right.string()->size());
    if (!left.is_markup() && !right.is_markup()) return *left.string() + *right.string();
    const auto escaped = [](const Value& value) {
      return value.is_markup() ? *value.string() : html_escaped(*value.string());
    };
    return Value::markup(escaped(left) + escaped(right));
  }
  const auto* a = left.sequence();
  const auto* b = right.sequence();
  if (!is_list_or_tuple(a) || !b || a->kind != b->kind) return std::nullopt;
  if (a->items.size() + b->items.size() > kMaxItems) throw Error("a list becomes too long");
  std::vector<Value> items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return sequence_of(a->kind, std::move(items));
}

// Indices of a slice over `size` elements.
std::vector<size_t> slice_indices(int64_t size, const SliceBounds& bounds) {
  const int64_t step = bounds.step.value_or(1);
  if (step == 0) throw Error("a slice has the step 0");
  const auto place = [&](std::optional<int64_t> bound, int64_t absent) {
    if (!bound) return absent;
    const int64_t lowest = step > 0 ? 0 : -1;
    const int64_t index = *bound < 0 ? (*bound < -size ? lowest : *bound + size) : *bound;
    return std::clamp(index, lowest, step > 0 ? size : size - 1);
  };
  const int64_t start = place(bounds.start, step > 0 ? 0 : size - 1);
  const int64_t stop = place(bounds.stop, step > 0 ? size : -1);
  std::vector<size_t> indices;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    indices.push_back(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return indices;
}

}  // namespace

Value calculate(Operator op, const Value& left, const Value& right) {
  if (op == Operator::kModulo && left.is_string()) return percent_format(*left.string(), right);
  const auto a = left.number();
  const auto b = right.number();
  if (a && b) {
    if (divides(op) && *b == 0) throw Error("division by zero");
    if (left.integer() && right.integer()) {
      return calculate_integers(op, *left.integer(), *right.integer());
    }
    if (op == Operator::kPower && (*a == 0 ? *b < 0 : *a < 0 && std::floor(*b) != *b)) {
      throw Error("a power is no real number");
    }
    return calculate_floats(op, *a, *b);
  }
  std::optional<Value> result;
  if (op == Operator::kAdd) result = joined(left, right);
  if (op == Operator::kMultiply) result = a ? repeated(right, left) : repeated(left, right);
  if (!result) fail_types(op, left, right);
  return *result;
}

Value negative(const Value& value) {
  if (value.is_float()) return -*value.number();
  if (const auto integer = value.integer()) {
    return calculate_integers(Operator::kSubtract, 0, *integer);
  }
  require_defined(value);
  throw Error("a value of type " + type_name(value) + " has no sign");
}

Value positive(const Value& value) {
  if (value.is_float()) return value;
  if (const auto integer = value.integer()) return *integer;
  require_defined(value);
  throw Error("a value of type " + type_name(value) + " has no sign");
}

bool compare(Relation relation, const Value& left, const Value& right) {
  switch (relation) {
    case Relation::kEqual:
      return equals(left, right);
    case Relation::kNotEqual:
      return !equals(left, right);
    case Relation::kLess:
      return less(left, right);
    case Relation::kLessEqual:
      return less(left, right) || (equals(left, right));
    case Relation::kGreater:
      return less(right, left);
    case Relation::kGreaterEqual:
      return less(right, left) || (equals(left, right));
    case Relation::kIn:
      return contains(right, left);
    case Relation::kNotIn:
      return !contains(right, left);
  }
  return false;
}

Value slice(const Value& value, const SliceBounds& bounds) {
  require_defined(value);
  if (const auto* text = value.string()) {
    const auto characters = code_points(*text);
    std::string out;
    for (const size_t i : slice_indices(static_cast<int64_t>(characters.size()), bounds)) {
      out += characters[i];
    }
    return value.is_markup() ? Value::markup(std::move(out)) : Value(std::move(out));
  }
  const auto* sequence = value.sequence();
  if (!sequence || !sequence->is_indexed()) {
    throw Error("a value of type " + type_name(value) + " cannot be sliced");
  }
  std::vector<Value> items;
  for (const size_t i : slice_indices(static_cast<int64_t>(sequence->items.size()), bounds)) {
    items.push_back(sequence->items[i]);
  }
  return sequence_of(sequence->kind, std::move(items));
}

}  // namespace tessera::jinja
