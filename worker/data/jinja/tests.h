// jinja2's tests: what follows `is`.
#pragma once

#include <string_view>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

// Throws Error for a test that there is not.
bool is_test(std::string_view name);
bool apply_test(std::string_view name, const Value& value, const Arguments& arguments);

}  // namespace tessera::jinja
