// jinja2's expressions, from the loosest binding (inline if) to the tightest.
#pragma once

#include <memory>
#include <string_view>

#include "worker/data/jinja/ast.h"
#include "worker/data/jinja/expressions.h"
#include "worker/data/jinja/token_stream.h"

namespace tessera::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr parse(bool with_conditional = true);
  // `a, b` without parentheses is a tuple. Ends also before the name `end`, where given.
  ExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end = {});
  CallArguments parse_call_arguments();  // "(" is next
  // One filter or more; null where there is none. The first is next, or "|" where `with_pipe`.
  std::unique_ptr<Filter> parse_filters(bool with_pipe);
  ExpressionPtr parse_postfix(ExpressionPtr operand);
  ExpressionPtr parse_primary();

  // Which of caller, kwargs and varargs were read so far.
  bool saw_caller = false;
  bool saw_kwargs = false;
  bool saw_varargs = false;

 private:
  class Depth;

  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_name();
  ExpressionPtr parse_string();
  ExpressionPtr parse_number();
  ExpressionPtr parse_parenthesised();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_member(ExpressionPtr operand);
  ExpressionPtr parse_subscript(ExpressionPtr operand);
  ExpressionPtr parse_call(ExpressionPtr function);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr operand);
  std::unique_ptr<Filter> parse_filter();
  ExpressionPtr parse_test(ExpressionPtr operand);
  std::string parse_dotted_name();
  bool is_tuple_end(std::string_view end) const;

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace tessera::jinja
