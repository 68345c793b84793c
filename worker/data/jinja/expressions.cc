#include "worker/data/jinja/expressions.h"

#include <algorithm>

#include "worker/data/jinja/filters.h"
#include "worker/data/jinja/members.h"
#include "worker/data/jinja/tests.h"

namespace tessera::jinja {
namespace {

std::optional<int64_t> bound(const ExpressionPtr& expression, Frame& frame) {
  if (!expression) return std::nullopt;
  const Value value = expression->evaluate(frame);
  if (value.is_none()) return std::nullopt;
  const auto integer = value.integer();
  if (!integer) {
    require_defined(value);
    throw Error("a slice needs integers, not a value of type " + type_name(value));
  }
  return integer;
}

// Steps for what is done with a value: whatever that is, it takes time by the value's size.
int64_t steps_of(const Value& value) {
  if (const auto* text = value.string()) return static_cast<int64_t>(text->size() / 64);
  if (const auto* sequence = value.sequence()) {
    return static_cast<int64_t>(sequence->items.size() / 16);
  }
  if (const auto* dict = value.dict()) return static_cast<int64_t>(dict->entries.size() / 16);
  return 0;
}

}  // namespace

Value Expression::evaluate(Frame& frame) const {
  struct Depth {
    explicit Depth(Rendering& r) : rendering(r) { rendering.enter(); }
    ~Depth() { rendering.leave(); }
    Rendering& rendering;
  } depth(frame.rendering());
  Value value = run(frame);
  frame.rendering().step(steps_of(value));
  return value;
}

Arguments CallArguments::evaluate(Frame& frame) const {
  Arguments arguments;
  arguments.positional.reserve(positional.size());
  for (const auto& expression : positional) {
    arguments.positional.push_back(expression->evaluate(frame));
  }
  if (list) {
    for (auto& item : elements(list->evaluate(frame))) {
      arguments.positional.push_back(std::move(item));
    }
  }
  for (const auto& [name, expression] : named) {
    arguments.named.emplace_back(name, expression->evaluate(frame));
  }
  if (!mapping) return arguments;
  const Value value = mapping->evaluate(frame);
  if (!value.is_dict()) throw Error("** needs a dict, not a value of type " + type_name(value));
  for (const auto& [key, item] : value.dict()->entries) {
    if (!key.is_string()) throw Error("** needs a dict with strings as keys");
    arguments.named.emplace_back(*key.string(), item);
  }
  return arguments;
}

Value Name::run(Frame& frame) const {
  const Value* value = frame.scope().find(name);
  return value ? *value : Value::undefined("'" + name + "' is undefined");
}

Value SequenceDisplay::run(Frame& frame) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const auto& item : items) values.push_back(item->evaluate(frame));
  return is_tuple ? Value::tuple(std::move(values)) : Value::list(std::move(values));
}

Value DictDisplay::run(Frame& frame) const {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : entries) {
    const Value evaluated_key = key->evaluate(frame);
    dict->set(evaluated_key, value->evaluate(frame));
  }
  return dict;
}

Value Attribute::run(Frame& frame) const { return attribute_of(operand->evaluate(frame), name); }

Value Subscript::run(Frame& frame) const {
  const Value value = operand->evaluate(frame);
  return item_of(value, key->evaluate(frame));
}

Value Slice::run(Frame& frame) const {
  const Value value = operand->evaluate(frame);
  SliceBounds bounds;
  bounds.start = bound(start, frame);
  bounds.stop = bound(stop, frame);
  bounds.step = bound(step, frame);
  return slice(value, bounds);
}

Value Call::run(Frame& frame) const {
  const Value callee = function->evaluate(frame);
  const Arguments values = arguments.evaluate(frame);
  require_defined(callee);
  if (!callee.object()) throw Error("a value of type " + type_name(callee) + " cannot be called");
  return callee.object()->call(frame, values);
}

Value Filter::run(Frame& frame) const {
  const Value input = operand->evaluate(frame);
  return apply_filter(name, frame, input, arguments.evaluate(frame));
}

Value Filter::apply(Frame& frame, const Value& input) const {
  const auto* inner = dynamic_cast<const Filter*>(operand.get());
  const Value own_input = inner ? inner->apply(frame, input) : input;
  return apply_filter(name, frame, own_input, arguments.evaluate(frame));
}

Value Test::run(Frame& frame) const {
  const Value value = operand->evaluate(frame);
  return apply_test(name, value, arguments.evaluate(frame));
}

Value Not::run(Frame& frame) const { return !truthy(operand->evaluate(frame)); }

Value Sign::run(Frame& frame) const {
  const Value value = operand->evaluate(frame);
  return is_minus ? negative(value) : positive(value);
}

Value Arithmetic::run(Frame& frame) const {
  const Value a = left->evaluate(frame);
  return calculate(op, a, right->evaluate(frame));
}

Value Concatenation::run(Frame& frame) const {
  std::string text;
  for (const auto& part : parts) {
    text += to_text(part->evaluate(frame));
    check_text_size(text.size());
  }
  return text;
}

Value Comparison::run(Frame& frame) const {
  Value left = first->evaluate(frame);
  for (const auto& [relation, expression] : others) {
    Value right = expression->evaluate(frame);
    const int64_t weight = std::min(left.measure().weight, right.measure().weight);
    frame.rendering().step(weight / 16);
    if (!compare(relation, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Logic::run(Frame& frame) const {
  Value value = left->evaluate(frame);
  return truthy(value) == is_and ? right->evaluate(frame) : value;
}

Value Conditional::run(Frame& frame) const {
  if (truthy(condition->evaluate(frame))) return yes->evaluate(frame);
  if (no) return no->evaluate(frame);
  return Value::undefined("an inline if without else has no value, as its condition is false");
}

}  // namespace tessera::jinja
