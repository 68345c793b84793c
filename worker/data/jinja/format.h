// Python's two ways to put values into a text.
#pragma once

#include <string>
#include <string_view>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

// `format % arguments`. Throws Error for what does not go together.
std::string percent_format(std::string_view format, const Value& arguments);
// `format.format(...)`.
std::string brace_format(std::string_view format, const Arguments& arguments);

}  // namespace tessera::jinja
