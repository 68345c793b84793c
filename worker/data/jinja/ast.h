// The tree of a parsed template. Nodes are immutable and know how to run.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/value.h"

namespace tessera::jinja {

class Expression {
 public:
  virtual ~Expression() = default;
  // Counts as a step, and bounds the depth.
  Value evaluate(Frame& frame) const;

 protected:
  virtual Value run(Frame& frame) const = 0;
};
using ExpressionPtr = std::unique_ptr<const Expression>;

enum class Flow { kNext, kBreak, kContinue };

class Statement {
 public:
  virtual ~Statement() = default;
  Flow execute(Frame& frame) const;

 protected:
  virtual Flow run(Frame& frame) const = 0;
};
using StatementPtr = std::unique_ptr<const Statement>;
using Body = std::vector<StatementPtr>;

Flow execute(const Body& body, Frame& frame);
// What the body prints, run with names of its own.
std::string capture(const Body& body, Frame& frame);

// `a, b=c, *d, **e` of a call.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr list;     // after *, or null
  ExpressionPtr mapping;  // after **, or null

  Arguments evaluate(Frame& frame) const;
};

// What an assignment, or a loop, sets: one name, names in a tuple, or a namespace's attribute.
struct Target {
  std::string name;
  std::string attribute;      // of the namespace `name`; else empty
  std::vector<Target> tuple;  // if not empty, the others are
};

void assign(const Target& target, const Value& value, Frame& frame);

// The body of a macro, a call block or {% generation %}.
struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Body body;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

// A macro in the scope of the frame; the definition must outlive the rendering.
Value make_macro(const MacroDefinition& definition, Frame& frame);

}  // namespace tessera::jinja
