// What every template can call: range, dict, namespace, cycler, joiner, raise_exception and
// strftime_now.
#pragma once

#include <string>

#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/value.h"

namespace tessera::jinja {

void set_globals(Scope& scope);
// `name.attribute = value` in a template, where `target` is what `name` is (null: nothing). Throws
// Error where that is no namespace.
void set_namespace_attribute(const Value* target, const std::string& name,
                             const std::string& attribute, const Value& value);

}  // namespace tessera::jinja
