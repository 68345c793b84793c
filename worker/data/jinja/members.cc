#include "worker/data/jinja/members.h"

#include <optional>

#include "worker/data/jinja/methods.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

Value no_member(const Value& value, const std::string& name) {
  return Value::undefined("a value of type " + type_name(value) + " has no '" + name + "'");
}

std::optional<Value> python_attribute(const Value& value, std::string_view name) {
  if (name.starts_with("__")) {
    return Value::undefined("access to '" + std::string(name) + "' is unsafe");
  }
  if (const auto* object = value.object()) return object->attribute(name);
  return method_of(value, name);
}

// value[key], where Python has that.
std::optional<Value> python_item(const Value& value, const Value& key) {
  if (const auto* dict = value.dict()) {
    const Value* there = dict->find(key);
    return there ? std::optional<Value>(*there) : std::nullopt;
  }
  const auto index = key.integer();
  if (!index) return std::nullopt;
  const auto* sequence = value.sequence();
  if (sequence && !sequence->is_indexed()) return std::nullopt;
  if (!sequence && !value.is_string()) return std::nullopt;
  const int64_t size = length(value);
  const int64_t place = *index < 0 ? *index + size : *index;
  if (place < 0 || place >= size) return std::nullopt;
  if (sequence) return sequence->items[static_cast<size_t>(place)];
  return Value(code_points(*value.string())[static_cast<size_t>(place)]);
}

}  // namespace

Value attribute_of(const Value& value, std::string_view name) {
  if (name != "__class__") require_defined(value);
  if (auto attribute = python_attribute(value, name)) return *attribute;
  if (auto item = python_item(value, Value(name))) return *item;
  return no_member(value, std::string(name));
}

Value item_of(const Value& value, const Value& key) {
  require_defined(value);
  if (auto item = python_item(value, key)) return *item;
  if (const auto* name = key.string()) {
    if (auto attribute = python_attribute(value, *name)) return *attribute;
  }
  return no_member(value, to_text(key));
}

Value make_function(std::string name, Function::Body body) {
  return std::shared_ptr<Object>(std::make_shared<Function>(std::move(name), std::move(body)));
}

}  // namespace tessera::jinja
