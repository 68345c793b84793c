// Known chat templates that do not say what the assistant said, made to say it.
#pragma once

#include <optional>
#include <string>

namespace tessera {

// The template with {% generation %} around what the model has to write, where `source` is one that
// is known. Masks are then those of TRL, which swaps in templates of its own.
std::optional<std::string> training_template(const std::string& source);

}  // namespace tessera
