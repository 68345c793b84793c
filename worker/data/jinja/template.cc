#include "worker/data/jinja/template.h"

#include "worker/data/jinja/globals.h"
#include "worker/data/jinja/parser.h"

namespace tessera::jinja {

Body Template::parse(std::string_view source) { return jinja::parse(source); }

Rendered Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                          std::time_t now) const {
  Rendering rendering(now);
  Scope* globals = rendering.new_scope(nullptr);
  set_globals(*globals);
  Scope* given = rendering.new_scope(globals);
  for (const auto& [name, value] : variables) given->set(name, value);
  Frame frame(rendering, rendering.new_scope(given), &rendering.output());
  execute(body_, frame);
  return {std::move(rendering.output()), std::move(rendering.generated())};
}

}  // namespace tessera::jinja
