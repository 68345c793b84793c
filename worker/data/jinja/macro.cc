// Macros, and the callers of call blocks.
#include <algorithm>

#include "worker/data/jinja/ast.h"
#include "worker/data/jinja/scope_mark.h"

namespace tessera::jinja {
namespace {

class Macro final : public Object {
 public:
  Macro(const MacroDefinition& definition, Scope* scope) : definition_(definition), scope_(scope) {}

  std::string repr(int) const override { return "<Macro '" + definition_.name + "'>"; }
  bool is_callable() const override { return true; }

  Value call(Frame& frame, const Arguments& arguments) override {
    const ScopeMark mark(frame.rendering());
    std::string text;
    Frame inner = frame.inner_of(scope_, &text);
    bind(arguments, inner);
    execute(definition_.body, inner);
    return text;
  }

  std::optional<Value> attribute(std::string_view name) const override {
    if (name == "name") return Value(definition_.name);
    return std::nullopt;
  }

 private:
  void bind(const Arguments& arguments, Frame& frame) const {
    const auto& names = definition_.parameters;
    const auto& positional = arguments.positional;
    auto rest = arguments.named;
    std::vector<std::optional<Value>> values(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      values[i] = i < positional.size() ? positional[i] : take(rest, names[i]);
    }
    const bool has_caller = std::find(names.begin(), names.end(), "caller") != names.end();
    if (definition_.uses_caller && !has_caller) {
      const auto caller = take(rest, "caller");
      frame.scope().set("caller", caller ? *caller : Value::undefined("no caller is defined"));
    }
    set_rest(positional, rest, frame);
    for (size_t i = 0; i < names.size(); ++i) {
      frame.scope().set(names[i], values[i] ? *values[i] : default_of(i, frame));
    }
  }

  static std::optional<Value> take(std::vector<std::pair<std::string, Value>>& named,
                                   const std::string& name) {
    const auto there = std::find_if(named.begin(), named.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (there == named.end()) return std::nullopt;
    const Value value = there->second;
    named.erase(there);
    return value;
  }

  void set_rest(const std::vector<Value>& positional,
                const std::vector<std::pair<std::string, Value>>& named, Frame& frame) const {
    const size_t num_names = definition_.parameters.size();
    if (definition_.uses_kwargs) {
      auto dict = std::make_shared<Dict>();
      for (const auto& [name, value] : named) dict->set(name, value);
      frame.scope().set("kwargs", dict);
    } else if (!named.empty()) {
      throw Error("the macro '" + definition_.name + "' takes no argument '" + named[0].first +
                  "'");
    }
    std::vector<Value> more;
    for (size_t i = num_names; i < positional.size(); ++i) more.push_back(positional[i]);
    if (definition_.uses_varargs) {
      frame.scope().set("varargs", Value::tuple(std::move(more)));
    } else if (!more.empty()) {
      throw Error("the macro '" + definition_.name + "' takes at most " +
                  std::to_string(num_names) + " arguments");
    }
  }

  Value default_of(size_t index, Frame& frame) const {
    const size_t num_required = definition_.parameters.size() - definition_.defaults.size();
    if (index >= num_required) return definition_.defaults[index - num_required]->evaluate(frame);
    return Value::undefined("parameter '" + definition_.parameters[index] + "' was not provided");
  }

  const MacroDefinition& definition_;
  Scope* scope_;
};

}  // namespace

Value make_macro(const MacroDefinition& definition, Frame& frame) {
  frame.rendering().note_macro();
  return std::shared_ptr<Object>(std::make_shared<Macro>(definition, &frame.scope()));
}

}  // namespace tessera::jinja
