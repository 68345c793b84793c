#include "worker/data/jinja/expression_parser.h"

#include <charconv>

namespace tessera::jinja {
namespace {

constexpr int kMaxDepth = 200;  // of parentheses inside each other

std::optional<Relation> relation_of(const Token& token) {
  constexpr std::pair<const char*, Relation> kRelations[] = {
      {"==", Relation::kEqual},     {"!=", Relation::kNotEqual}, {"<", Relation::kLess},
      {"<=", Relation::kLessEqual}, {">", Relation::kGreater},   {">=", Relation::kGreaterEqual},
  };
  for (const auto& [text, relation] : kRelations) {
    if (token.is_operator(text)) return relation;
  }
  return std::nullopt;
}

ExpressionPtr arithmetic(Operator op, ExpressionPtr left, ExpressionPtr right) {
  auto node = std::make_unique<Arithmetic>();
  node->op = op;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

ExpressionPtr logic(bool is_and, ExpressionPtr left, ExpressionPtr right) {
  auto node = std::make_unique<Logic>();
  node->is_and = is_and;
  node->left = std::move(left);
  node->right = std::move(right);
  return node;
}

}  // namespace

class ExpressionParser::Depth {
 public:
  explicit Depth(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.depth_ > kMaxDepth) parser_.tokens_.fail("expressions are nested too deep");
  }
  ~Depth() { --parser_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  ExpressionParser& parser_;
};

ExpressionPtr ExpressionParser::parse(bool with_conditional) {
  const Depth depth(*this);
  return with_conditional ? parse_conditional() : parse_or();
}

ExpressionPtr ExpressionParser::parse_conditional() {
  ExpressionPtr value = parse_or();
  while (tokens_.take_name("if")) {
    auto node = std::make_unique<Conditional>();
    node->yes = std::move(value);
    node->condition = parse_or();
    if (tokens_.take_name("else")) node->no = parse();
    value = std::move(node);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (tokens_.take_name("or")) left = logic(false, std::move(left), parse_and());
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (tokens_.take_name("and")) left = logic(true, std::move(left), parse_not());
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!tokens_.take_name("not")) return parse_comparison();
  const Depth depth(*this);
  return std::make_unique<Not>(parse_not());
}

ExpressionPtr ExpressionParser::parse_comparison() {
  ExpressionPtr first = parse_sum();
  auto node = std::make_unique<Comparison>();
  while (true) {
    std::optional<Relation> relation = relation_of(tokens_.current());
    if (relation) {
      tokens_.take();
    } else if (tokens_.take_name("in")) {
      relation = Relation::kIn;
    } else if (tokens_.current().is_name("not") && tokens_.following().is_name("in")) {
      tokens_.take();
      tokens_.take();
      relation = Relation::kNotIn;
    } else {
      break;
    }
    node->others.emplace_back(*relation, parse_sum());
  }
  if (node->others.empty()) return first;
  node->first = std::move(first);
  return node;
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (true) {
    if (tokens_.take_operator("+")) {
      left = arithmetic(Operator::kAdd, std::move(left), parse_concatenation());
    } else if (tokens_.take_operator("-")) {
      left = arithmetic(Operator::kSubtract, std::move(left), parse_concatenation());
    } else {
      return left;
    }
  }
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  ExpressionPtr first = parse_product();
  if (!tokens_.current().is_operator("~")) return first;
  auto node = std::make_unique<Concatenation>();
  node->parts.push_back(std::move(first));
  while (tokens_.take_operator("~")) node->parts.push_back(parse_product());
  return node;
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (true) {
    if (tokens_.take_operator("*")) {
      left = arithmetic(Operator::kMultiply, std::move(left), parse_power());
    } else if (tokens_.take_operator("/")) {
      left = arithmetic(Operator::kDivide, std::move(left), parse_power());
    } else if (tokens_.take_operator("//")) {
      left = arithmetic(Operator::kFloorDivide, std::move(left), parse_power());
    } else if (tokens_.take_operator("%")) {
      left = arithmetic(Operator::kModulo, std::move(left), parse_power());
    } else {
      return left;
    }
  }
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (tokens_.take_operator("**")) {
    left = arithmetic(Operator::kPower, std::move(left), parse_unary(true));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  ExpressionPtr operand;
  const bool is_minus = tokens_.current().is_operator("-");
  if (is_minus || tokens_.current().is_operator("+")) {
    const Depth depth(*this);
    tokens_.take();
    auto node = std::make_unique<Sign>();
    node->is_minus = is_minus;
    node->operand = parse_unary(false);
    operand = std::move(node);
  } else {
    operand = parse_primary();
  }
  operand = parse_postfix(std::move(operand));
  return with_filters ? parse_filters_and_tests(std::move(operand)) : std::move(operand);
}

ExpressionPtr ExpressionParser::parse_primary() {
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString:
      return parse_string();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    default:
      break;
  }
  if (tokens_.current().is_operator("(")) return parse_parenthesised();
  if (tokens_.current().is_operator("[")) return parse_list();
  if (tokens_.current().is_operator("{")) return parse_dict();
  tokens_.fail("expected an expression");
}

ExpressionPtr ExpressionParser::parse_name() {
  const std::string name = tokens_.take().text;
  if (name == "true" || name == "True") return std::make_unique<Constant>(true);
  if (name == "false" || name == "False") return std::make_unique<Constant>(false);
  if (name == "none" || name == "None") return std::make_unique<Constant>(Value());
  if (name == "caller") saw_caller = true;
  if (name == "kwargs") saw_kwargs = true;
  if (name == "varargs") saw_varargs = true;
  return std::make_unique<Name>(name);
}

ExpressionPtr ExpressionParser::parse_string() {
  std::string text;
  while (tokens_.current().kind == TokenKind::kString) text += tokens_.take().text;
  return std::make_unique<Constant>(text);
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token& token = tokens_.current();
  const char* end = token.text.data() + token.text.size();
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    if (std::from_chars(token.text.data(), end, value).ptr != end) tokens_.fail("no number");
    tokens_.take();
    return std::make_unique<Constant>(value);
  }
  int64_t value = 0;
  const auto result = std::from_chars(token.text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) tokens_.fail("an integer is too large");
  tokens_.take();
  return std::make_unique<Constant>(value);
}

ExpressionPtr ExpressionParser::parse_parenthesised() {
  const Depth depth(*this);
  tokens_.take();
  if (tokens_.take_operator(")")) {
    auto empty = std::make_unique<SequenceDisplay>();
    empty->is_tuple = true;
    return empty;
  }
  ExpressionPtr inner = parse_tuple();
  tokens_.expect_operator(")");
  return inner;
}

ExpressionPtr ExpressionParser::parse_list() {
  const Depth depth(*this);
  tokens_.take();
  auto node = std::make_unique<SequenceDisplay>();
  while (!tokens_.take_operator("]")) {
    if (!node->items.empty()) {
      tokens_.expect_operator(",");
      if (tokens_.take_operator("]")) break;
    }
    node->items.push_back(parse());
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_dict() {
  const Depth depth(*this);
  tokens_.take();
  auto node = std::make_unique<DictDisplay>();
  while (!tokens_.take_operator("}")) {
    if (!node->entries.empty()) {
      tokens_.expect_operator(",");
      if (tokens_.take_operator("}")) break;
    }
    ExpressionPtr key = parse();
    tokens_.expect_operator(":");
    node->entries.emplace_back(std::move(key), parse());
  }
  return node;
}

bool ExpressionParser::is_tuple_end(std::string_view end) const {
  const Token& token = tokens_.current();
  return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
         token.is_operator(")") || (!end.empty() && token.is_name(end));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end) {
  auto node = std::make_unique<SequenceDisplay>();
  node->is_tuple = true;
  node->items.push_back(parse(with_conditional));
  if (!tokens_.current().is_operator(",")) return std::move(node->items.front());
  while (tokens_.take_operator(",")) {
    if (is_tuple_end(end)) break;
    node->items.push_back(parse(with_conditional));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr operand) {
  while (true) {
    if (tokens_.current().is_operator(".")) {
      operand = parse_member(std::move(operand));
    } else if (tokens_.current().is_operator("[")) {
      operand = parse_subscript(std::move(operand));
    } else if (tokens_.current().is_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::parse_member(ExpressionPtr operand) {
  tokens_.take();
  if (tokens_.current().kind == TokenKind::kInteger) {
    return std::make_unique<Subscript>(std::move(operand), parse_number());
  }
  const std::string name = tokens_.expect(TokenKind::kName, "a name after '.'").text;
  return std::make_unique<Attribute>(std::move(operand), name);
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr operand) {
  const Depth depth(*this);
  tokens_.take();
  ExpressionPtr start;
  if (!tokens_.current().is_operator(":")) start = parse();
  if (start && tokens_.current().is_operator(",")) tokens_.fail("a subscript takes one value");
  if (start && tokens_.take_operator("]")) {
    return std::make_unique<Subscript>(std::move(operand), std::move(start));
  }
  auto node = std::make_unique<Slice>();
  node->operand = std::move(operand);
  node->start = std::move(start);
  tokens_.expect_operator(":");
  const auto ends = [&] {
    return tokens_.current().is_operator(":") || tokens_.current().is_operator("]");
  };
  if (!ends()) node->stop = parse();
  if (tokens_.take_operator(":") && !ends()) node->step = parse();
  tokens_.expect_operator("]");
  return node;
}

CallArguments ExpressionParser::parse_call_arguments() {
  const Depth depth(*this);
  tokens_.expect_operator("(");
  CallArguments arguments;
  bool is_first = true;
  while (!tokens_.take_operator(")")) {
    if (!is_first) {
      tokens_.expect_operator(",");
      if (tokens_.take_operator(")")) break;
    }
    is_first = false;
    if (tokens_.take_operator("*")) {
      if (arguments.list || arguments.mapping) tokens_.fail("a call has two * arguments");
      arguments.list = parse();
    } else if (tokens_.take_operator("**")) {
      if (arguments.mapping) tokens_.fail("a call has two ** arguments");
      arguments.mapping = parse();
    } else if (tokens_.current().kind == TokenKind::kName && tokens_.following().is_operator("=")) {
      std::string name = tokens_.take().text;
      tokens_.take();
      arguments.named.emplace_back(std::move(name), parse());
    } else {
      if (!arguments.named.empty() || arguments.list || arguments.mapping) {
        tokens_.fail("an argument without a name follows one with a name");
      }
      arguments.positional.push_back(parse());
    }
  }
  return arguments;
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr function) {
  auto node = std::make_unique<Call>();
  node->function = std::move(function);
  node->arguments = parse_call_arguments();
  return node;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = tokens_.expect(TokenKind::kName, "a name").text;
  while (tokens_.take_operator(".")) name += "." + tokens_.expect(TokenKind::kName, "a name").text;
  return name;
}

std::unique_ptr<Filter> ExpressionParser::parse_filter() {
  auto filter = std::make_unique<Filter>();
  filter->name = parse_dotted_name();
  if (tokens_.current().is_operator("(")) filter->arguments = parse_call_arguments();
  return filter;
}

std::unique_ptr<Filter> ExpressionParser::parse_filters(bool with_pipe) {
  std::unique_ptr<Filter> outer;
  while (!with_pipe || tokens_.take_operator("|")) {
    auto filter = parse_filter();
    filter->operand = std::move(outer);
    outer = std::move(filter);
    with_pipe = true;
  }
  return outer;
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr operand) {
  while (true) {
    if (tokens_.take_operator("|")) {
      auto filter = parse_filter();
      filter->operand = std::move(operand);
      operand = std::move(filter);
    } else if (tokens_.take_name("is")) {
      operand = parse_test(std::move(operand));
    } else if (tokens_.current().is_operator("(")) {
      operand = parse_call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
  const Depth depth(*this);
  const bool is_negated = tokens_.take_name("not");
  auto test = std::make_unique<Test>();
  test->operand = std::move(operand);
  test->name = parse_dotted_name();
  const Token& next = tokens_.current();
  const bool is_operand = next.kind == TokenKind::kString || next.kind == TokenKind::kInteger ||
                          next.kind == TokenKind::kFloat || next.is_operator("[") ||
                          next.is_operator("{");
  const bool is_name = next.kind == TokenKind::kName && next.text != "else" && next.text != "or" &&
                       next.text != "and";
  if (next.is_operator("(")) {
    test->arguments = parse_call_arguments();
  } else if (is_operand || is_name) {
    if (next.is_name("is")) tokens_.fail("tests cannot be chained with 'is'");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  if (is_negated) return std::make_unique<Not>(std::move(test));
  return test;
}

}  // namespace tessera::jinja
