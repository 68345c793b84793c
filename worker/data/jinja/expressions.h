// The kinds of expressions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "worker/data/jinja/ast.h"
#include "worker/data/jinja/operators.h"

namespace tessera::jinja {

struct Constant final : Expression {
  explicit Constant(Value v) : value(std::move(v)) {}
  Value run(Frame&) const override { return value; }
  Value value;
};

struct Name final : Expression {
  explicit Name(std::string n) : name(std::move(n)) {}
  Value run(Frame& frame) const override;
  std::string name;
};

// (a, b) and [a, b].
struct SequenceDisplay final : Expression {
  Value run(Frame& frame) const override;
  bool is_tuple = false;
  std::vector<ExpressionPtr> items;
};

struct DictDisplay final : Expression {
  Value run(Frame& frame) const override;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};

// a.name
struct Attribute final : Expression {
  Attribute(ExpressionPtr o, std::string n) : operand(std::move(o)), name(std::move(n)) {}
  Value run(Frame& frame) const override;
  ExpressionPtr operand;
  std::string name;
};

// a[key]
struct Subscript final : Expression {
  Subscript(ExpressionPtr o, ExpressionPtr k) : operand(std::move(o)), key(std::move(k)) {}
  Value run(Frame& frame) const override;
  ExpressionPtr operand;
  ExpressionPtr key;
};

// a[start:stop:step], each or null.
struct Slice final : Expression {
  Value run(Frame& frame) const override;
  ExpressionPtr operand;
  ExpressionPtr start;
  ExpressionPtr stop;
  ExpressionPtr step;
};

struct Call final : Expression {
  Value run(Frame& frame) const override;
  ExpressionPtr function;
  CallArguments arguments;
};

// operand|name(...). A null operand: of {% filter %} and {% set %} blocks, see `apply`.
struct Filter final : Expression {
  Value run(Frame& frame) const override;
  // The filters from the innermost on, the innermost of which takes `input`.
  Value apply(Frame& frame, const Value& input) const;
  std::string name;
  ExpressionPtr operand;
  CallArguments arguments;
};

// operand is name(...).
struct Test final : Expression {
  Value run(Frame& frame) const override;
  std::string name;
  ExpressionPtr operand;
  CallArguments arguments;
};

struct Not final : Expression {
  explicit Not(ExpressionPtr o) : operand(std::move(o)) {}
  Value run(Frame& frame) const override;
  ExpressionPtr operand;
};

struct Sign final : Expression {
  Value run(Frame& frame) const override;
  bool is_minus = false;
  ExpressionPtr operand;
};

struct Arithmetic final : Expression {
  Value run(Frame& frame) const override;
  Operator op = Operator::kAdd;
  ExpressionPtr left;
  ExpressionPtr right;
};

// a ~ b ~ c
struct Concatenation final : Expression {
  Value run(Frame& frame) const override;
  std::vector<ExpressionPtr> parts;
};

// a < b <= c
struct Comparison final : Expression {
  Value run(Frame& frame) const override;
  ExpressionPtr first;
  std::vector<std::pair<Relation, ExpressionPtr>> others;
};

// a and b, a or b: the operand that decides.
struct Logic final : Expression {
  Value run(Frame& frame) const override;
  bool is_and = false;
  ExpressionPtr left;
  ExpressionPtr right;
};

// a if condition else b; no else: undefined.
struct Conditional final : Expression {
  Value run(Frame& frame) const override;
  ExpressionPtr condition;
  ExpressionPtr yes;
  ExpressionPtr no;
};

}  // namespace tessera::jinja
