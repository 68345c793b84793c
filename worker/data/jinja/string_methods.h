// Methods of Python's str.
#pragma once

#include <string>
#include <string_view>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

bool is_string_method(std::string_view name);
// Requires is_string_method(name).
Value call_string_method(std::string_view name, const std::string& text,
                         const Arguments& arguments);

}  // namespace tessera::jinja
