#include "worker/data/jinja/statements.h"

#include "worker/data/jinja/globals.h"
#include "worker/data/jinja/scope_mark.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {

Flow Statement::execute(Frame& frame) const {
  frame.rendering().step();
  return run(frame);
}

Flow execute(const Body& body, Frame& frame) {
  for (const auto& statement : body) {
    const Flow flow = statement->execute(frame);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

std::string capture(const Body& body, Frame& frame) {
  std::string text;
  const ScopeMark mark(frame.rendering());
  Frame inner = frame.inner_of(&frame.scope(), &text);
  execute(body, inner);
  return text;
}

void assign(const Target& target, const Value& value, Frame& frame) {
  if (!target.attribute.empty()) {
    set_namespace_attribute(frame.scope().find(target.name), target.name, target.attribute, value);
    return;
  }
  if (target.tuple.empty()) {
    frame.scope().set(target.name, value);
    return;
  }
  require_defined(value);
  const auto values = elements(value);
  if (values.size() != target.tuple.size()) {
    throw Error(std::to_string(values.size()) + " values are set to " +
                std::to_string(target.tuple.size()) + " names");
  }
  for (size_t i = 0; i < values.size(); ++i) assign(target.tuple[i], values[i], frame);
}

Flow Text::run(Frame& frame) const {
  frame.write(text);
  return Flow::kNext;
}

Flow Output::run(Frame& frame) const {
  frame.write(to_text(value->evaluate(frame)));
  return Flow::kNext;
}

Flow If::run(Frame& frame) const {
  for (const auto& branch : branches) {
    if (branch.condition && !truthy(branch.condition->evaluate(frame))) continue;
    return jinja::execute(branch.body, frame);
  }
  return Flow::kNext;
}

Flow Set::run(Frame& frame) const {
  assign(target, value->evaluate(frame), frame);
  return Flow::kNext;
}

Flow SetBlock::run(Frame& frame) const {
  Value value = capture(body, frame);
  if (filter) value = filter->apply(frame, value);
  assign(target, value, frame);
  return Flow::kNext;
}

Flow With::run(Frame& frame) const {
  const ScopeMark mark(frame.rendering());
  Frame inner = frame.inner();
  for (const auto& [target, value] : variables) assign(target, value->evaluate(frame), inner);
  return jinja::execute(body, inner);
}

Flow FilterBlock::run(Frame& frame) const {
  frame.write(to_text(filter->apply(frame, capture(body, frame))));
  return Flow::kNext;
}

Flow MacroStatement::run(Frame& frame) const {
  frame.scope().set(definition.name, make_macro(definition, frame));
  return Flow::kNext;
}

Flow CallBlock::run(Frame& frame) const {
  const Value function = call->function->evaluate(frame);
  Arguments arguments = call->arguments.evaluate(frame);
  arguments.named.emplace_back("caller", make_macro(caller, frame));
  require_defined(function);
  if (!function.object()) throw Error("{% call %} needs a macro");
  frame.write(to_text(function.object()->call(frame, arguments)));
  return Flow::kNext;
}

Flow Generation::run(Frame& frame) const {
  const std::string text = capture(body, frame);
  Rendering& rendering = frame.rendering();
  // Inside of a macro this is where the macro's own output will begin, as in transformers.
  const int64_t begin = rendering.num_output_characters();
  rendering.generated().push_back({begin, begin + static_cast<int64_t>(num_code_points(text))});
  frame.write(text);
  return Flow::kNext;
}

}  // namespace tessera::jinja
