// Values as Python's json.dumps writes them.
#pragma once

#include <optional>
#include <string>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Throws Error for a value that JSON has no type for.
std::string json_text(const Value& value, const JsonStyle& style);

}  // namespace tessera::jinja
