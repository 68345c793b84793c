#include "worker/data/jinja/globals.h"

#include <ctime>

#include "worker/data/jinja/members.h"
#include "worker/data/jinja/parameters.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as jinja2's sandbox

class Namespace final : public Object {
 public:
  explicit Namespace(std::shared_ptr<Dict> attributes) : attributes_(std::move(attributes)) {}
  std::string repr(int depth) const override {
    const Value copy = std::make_shared<Dict>(Dict{attributes_->entries, {}});
    return "<Namespace " + jinja::repr(copy, depth + 1) + ">";
  }
  std::optional<Value> attribute(std::string_view name) const override {
    const Value* value = attributes_->find_name(name);
    return value ? std::optional<Value>(*value) : std::nullopt;
  }
  void set(const std::string& name, const Value& value) { attributes_->set(name, value); }

 private:
  std::shared_ptr<Dict> attributes_;
};

void check_attribute(std::string_view name) {
  if (name.starts_with('_')) {
    throw Error("the namespace attribute '" + std::string(name) + "' begins with '_'");
  }
}

// dict(mapping or pairs, name=value...).
std::shared_ptr<Dict> make_dict(Frame& frame, const Arguments& arguments) {
  auto dict = std::make_shared<Dict>();
  if (arguments.positional.size() > 1) throw Error("dict() takes one value without a name");
  for (const auto& source : arguments.positional) {
    if (const auto* mapping = source.dict()) {
      dict->entries = mapping->entries;
      continue;
    }
    require_defined(source);
    for (const auto& pair : elements(source)) {
      const auto parts = elements(pair);
      if (parts.size() != 2) throw Error("dict() needs pairs");
      frame.rendering().step(dict->search_steps());
      dict->set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) dict->set(name, value);
  return dict;
}

Value make_namespace(Frame& frame, const Arguments& arguments) {
  auto attributes = make_dict(frame, arguments);
  for (const auto& entry : attributes->entries) {
    if (const auto* name = entry.first.string()) check_attribute(*name);
  }
  frame.rendering().keep(attributes);
  return std::shared_ptr<Object>(std::make_shared<Namespace>(std::move(attributes)));
}

Value range(Frame&, const Arguments& arguments) {
  const Parameters parameters("range()", arguments, {"start", "stop", "step"});
  const bool has_start = parameters.has(1);
  parameters.at(0);
  const int64_t start = has_start ? parameters.integer(0, 0) : 0;
  const int64_t stop = has_start ? parameters.integer(1, 0) : parameters.integer(0, 0);
  const int64_t step = parameters.integer(2, 1);
  if (step == 0) throw Error("range() has the step 0");
  auto sequence = std::make_shared<Sequence>(Sequence{SequenceKind::kRange, {}});
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(sequence->items.size()) >= kMaxRange) {
      throw Error("range() has more than " + std::to_string(kMaxRange) + " numbers");
    }
    sequence->items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return sequence;
}

Value raise_exception(Frame&, const Arguments& arguments) {
  const Parameters parameters("raise_exception()", arguments, {"message"});
  throw Error(to_text(parameters.at(0)));
}

Value strftime_now(Frame& frame, const Arguments& arguments) {
  const Parameters parameters("strftime_now()", arguments, {"format"});
  const std::time_t now = frame.rendering().now();
  std::tm local{};
  localtime_r(&now, &local);
  char text[1024];
  const std::string& format = parameters.string(0);
  if (format.empty()) return "";
  const size_t size = std::strftime(text, sizeof(text), format.c_str(), &local);
  if (size == 0) throw Error("strftime_now() does not know the format, or its text is too long");
  return std::string(text, size);
}

class Cycler final : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string repr(int) const override { return "<Cycler>"; }
  std::optional<Value> attribute(std::string_view name) const override {
    if (name == "current") return items_[*next_];
    if (name == "next") {
      return make_function("next", [items = items_, next = next_](Frame&, const Arguments&) {
        const Value value = items[*next];
        *next = (*next + 1) % items.size();
        return value;
      });
    }
    if (name == "reset") {
      return make_function("reset", [next = next_](Frame&, const Arguments&) {
        *next = 0;
        return Value();
      });
    }
    return std::nullopt;
  }

 private:
  std::vector<Value> items_;
  std::shared_ptr<size_t> next_ = std::make_shared<size_t>(0);
};

Value make_cycler(Frame&, const Arguments& arguments) {
  if (arguments.positional.empty()) throw Error("cycler() needs a value");
  return std::shared_ptr<Object>(std::make_shared<Cycler>(arguments.positional));
}

Value make_joiner(Frame&, const Arguments& arguments) {
  const Parameters parameters("joiner()", arguments, {"sep"});
  return make_function("joiner", [separator = parameters.value(0, ", "),
                                  used = std::make_shared<bool>(false)](Frame&, const Arguments&) {
    return std::exchange(*used, true) ? separator : Value("");
  });
}

}  // namespace

void set_globals(Scope& scope) {
  scope.set("range", make_function("range", range));
  scope.set("dict", make_function("dict", [](Frame& frame, const Arguments& arguments) -> Value {
              return make_dict(frame, arguments);
            }));
  scope.set("namespace", make_function("namespace", make_namespace));
  scope.set("cycler", make_function("cycler", make_cycler));
  scope.set("joiner", make_function("joiner", make_joiner));
  scope.set("raise_exception", make_function("raise_exception", raise_exception));
  scope.set("strftime_now", make_function("strftime_now", strftime_now));
}

void set_namespace_attribute(const Value* target, const std::string& name,
                             const std::string& attribute, const Value& value) {
  auto* object = target ? dynamic_cast<Namespace*>(target->object()) : nullptr;
  if (!object)
    throw Error("'" + name + "." + attribute + "' is set, but '" + name + "' is no namespace");
  check_attribute(attribute);
  object->set(attribute, value);
}

}  // namespace tessera::jinja
