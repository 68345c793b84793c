// Arguments of a call, by position or by name.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

// Refers to the arguments that it is made of.
class Parameters {
 public:
  // Throws Error for one too many, twice, or of another name, as of `function`.
  Parameters(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names);

  bool has(size_t index) const { return values_[index] != nullptr; }
  // Throws Error where it is missing, or of another type.
  const Value& at(size_t index) const;
  const std::string& string(size_t index) const;
  Value value(size_t index, Value absent) const;
  int64_t integer(size_t index, int64_t absent) const;
  bool flag(size_t index, bool absent) const;
  // Empty where it is missing or None.
  std::optional<std::string_view> optional_string(size_t index) const;

 private:
  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;  // null: not given
};

}  // namespace tessera::jinja
