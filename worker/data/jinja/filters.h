// jinja2's filters, with transformers' tojson.
#pragma once

#include <string_view>

#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/value.h"

namespace tessera::jinja {

using FilterFunction = Value (*)(Frame& frame, const Value& input, const Arguments& arguments);
struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};

bool is_filter(std::string_view name);
// Throws Error for a filter that there is not.
Value apply_filter(std::string_view name, Frame& frame, const Value& input,
                   const Arguments& arguments);

// The filters of sequences, in sequence_filters.cc; null where there is none of the name.
FilterFunction find_sequence_filter(std::string_view name);

}  // namespace tessera::jinja
