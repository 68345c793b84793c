// The kinds of statements.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/jinja/ast.h"
#include "worker/data/jinja/expressions.h"

namespace tessera::jinja {

// Text outside of tags.
struct Text final : Statement {
  explicit Text(std::string t) : text(std::move(t)) {}
  Flow run(Frame& frame) const override;
  std::string text;
};

// {{ value }}
struct Output final : Statement {
  explicit Output(ExpressionPtr v) : value(std::move(v)) {}
  Flow run(Frame& frame) const override;
  ExpressionPtr value;
};

// {% if %} with its {% elif %}s; the condition of {% else %} is null.
struct If final : Statement {
  struct Branch {
    ExpressionPtr condition;
    Body body;
  };
  Flow run(Frame& frame) const override;
  std::vector<Branch> branches;
};

struct For final : Statement {
  Flow run(Frame& frame) const override;
  // One loop over `items`, in a scope inside of `outer`; `depth` counts from 0.
  void loop(const Value& items, Scope* outer, std::string* out, Rendering& rendering,
            int64_t depth) const;
  Target target;
  ExpressionPtr items;
  ExpressionPtr condition;  // null: none
  bool is_recursive = false;
  Body body;
  Body otherwise;  // where there are no items
};

struct LoopControl final : Statement {
  explicit LoopControl(Flow f) : flow(f) {}
  Flow run(Frame&) const override { return flow; }
  Flow flow;
};

// {% set target = value %}
struct Set final : Statement {
  Flow run(Frame& frame) const override;
  Target target;
  ExpressionPtr value;
};

// {% set target | filter %}body{% endset %}
struct SetBlock final : Statement {
  Flow run(Frame& frame) const override;
  Target target;
  std::unique_ptr<const Filter> filter;  // null: none
  Body body;
};

struct With final : Statement {
  Flow run(Frame& frame) const override;
  std::vector<std::pair<Target, ExpressionPtr>> variables;
  Body body;
};

struct FilterBlock final : Statement {
  Flow run(Frame& frame) const override;
  std::unique_ptr<const Filter> filter;
  Body body;
};

struct MacroStatement final : Statement {
  Flow run(Frame& frame) const override;
  MacroDefinition definition;
};

// {% call(parameters) function(arguments) %}body{% endcall %}
struct CallBlock final : Statement {
  Flow run(Frame& frame) const override;
  MacroDefinition caller;
  std::unique_ptr<const Call> call;
};

// {% generation %}: what its body prints is what the assistant says.
struct Generation final : Statement {
  Flow run(Frame& frame) const override;
  Body body;
};

}  // namespace tessera::jinja
