// jinja2 as transformers runs it for chat templates: trim_blocks, lstrip_blocks, loop controls,
// {% generation %}, its own tojson. Renders byte for byte what jinja2 does, or throws.
//
// A template is untrusted: steps, depth, and the size of any text are bounded, it cannot reach
// anything but the values it is given, and the clock.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/data/jinja/ast.h"
#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/value.h"

namespace tessera::jinja {

struct Rendered {
  std::string text;
  // What {% generation %} blocks printed, in the order in which they ended.
  std::vector<CharacterRange> generated;
};

// Immutable: one serves all threads.
class Template {
 public:
  // Throws Error "line 3: ...".
  explicit Template(std::string_view source) : body_(parse(source)) {}

  // `now` is what strftime_now tells. Throws Error.
  Rendered render(const std::vector<std::pair<std::string, Value>>& variables,
                  std::time_t now) const;

 private:
  static Body parse(std::string_view source);

  Body body_;
};

}  // namespace tessera::jinja
