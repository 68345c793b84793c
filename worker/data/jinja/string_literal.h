// The escapes of a Python string literal.
#pragma once

#include <string>
#include <string_view>

namespace tessera::jinja {

// What stands between the quotes. Throws Error for a \x, \u or \U that is none.
std::string unescape(std::string_view literal);

}  // namespace tessera::jinja
