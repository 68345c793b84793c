// Python's operators.
#pragma once

#include <optional>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

enum class Operator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class Relation { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

// All throw Error for types that do not go together, division by zero, and integers that leave
// int64.
Value calculate(Operator op, const Value& left, const Value& right);
Value negative(const Value& value);
Value positive(const Value& value);
bool compare(Relation relation, const Value& left, const Value& right);

struct SliceBounds {
  std::optional<int64_t> start;
  std::optional<int64_t> stop;
  std::optional<int64_t> step;
};
// Throws Error where the value cannot be sliced.
Value slice(const Value& value, const SliceBounds& bounds);

}  // namespace tessera::jinja
