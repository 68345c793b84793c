// Methods of Python's str, list, tuple, dict and float.
#pragma once

#include <optional>
#include <string_view>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

// `value.name` as a function to call. Empty where the type has no such method; undefined where it
// would change the value, which templates may not.
std::optional<Value> method_of(const Value& value, std::string_view name);

}  // namespace tessera::jinja
