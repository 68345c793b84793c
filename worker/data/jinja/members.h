// What `value.name` and `value[key]` are: Python's methods, keys and indices, as far as jinja2's
// sandbox shows them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "worker/data/jinja/value.h"

namespace tessera::jinja {

// A method or key. Undefined where there is none; throws Error on an undefined value.
Value attribute_of(const Value& value, std::string_view name);
Value item_of(const Value& value, const Value& key);

class Function final : public Object {
 public:
  using Body = std::function<Value(Frame&, const Arguments&)>;
  Function(std::string name, Body body) : name_(std::move(name)), body_(std::move(body)) {}
  std::string repr(int) const override { return "<function " + name_ + ">"; }
  bool is_callable() const override { return true; }
  Value call(Frame& frame, const Arguments& arguments) override { return body_(frame, arguments); }

 private:
  std::string name_;
  Body body_;
};

Value make_function(std::string name, Function::Body body);

}  // namespace tessera::jinja
