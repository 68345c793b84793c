// Turns a template's source into its tree.
#pragma once

#include <string_view>

#include "worker/data/jinja/ast.h"

namespace tessera::jinja {

// Throws Error "line 3: ...": not jinja2, or a statement that chat templates have no use for
// (include, import, extends, block).
Body parse(std::string_view source);

}  // namespace tessera::jinja
