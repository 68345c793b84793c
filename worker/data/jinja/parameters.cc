#include "worker/data/jinja/parameters.h"

#include <algorithm>

namespace tessera::jinja {

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (arguments.positional.size() > names_.size()) {
    throw Error(function_ + " takes at most " + std::to_string(names_.size()) + " arguments");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(names_.begin(), names_.end(), name) - names_.begin();
    if (static_cast<size_t>(place) == names_.size() || values_[static_cast<size_t>(place)]) {
      throw Error(function_ + " takes no argument '" + name + "', or has it twice");
    }
    values_[static_cast<size_t>(place)] = &value;
  }
}

const Value& Parameters::at(size_t index) const {
  if (!values_[index]) {
    throw Error(function_ + " needs the argument '" + std::string(names_[index]) + "'");
  }
  return *values_[index];
}

const std::string& Parameters::string(size_t index) const {
  const auto* text = at(index).string();
  if (text) return *text;
  require_defined(at(index));
  throw Error("the argument '" + std::string(names_[index]) + "' of " + function_ +
              " must be a string, not a value of type " + type_name(at(index)));
}

Value Parameters::value(size_t index, Value absent) const {
  return has(index) ? at(index) : std::move(absent);
}

int64_t Parameters::integer(size_t index, int64_t absent) const {
  if (!has(index)) return absent;
  const auto integer = at(index).integer();
  if (integer) return *integer;
  require_defined(at(index));
  throw Error("the argument '" + std::string(names_[index]) + "' of " + function_ +
              " must be an integer, not a value of type " + type_name(at(index)));
}

bool Parameters::flag(size_t index, bool absent) const {
  return has(index) ? truthy(at(index)) : absent;
}

std::optional<std::string_view> Parameters::optional_string(size_t index) const {
  if (!has(index) || at(index).is_none()) return std::nullopt;
  return string(index);
}

}  // namespace tessera::jinja
