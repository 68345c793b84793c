#include "worker/data/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "worker/data/jinja/expression_parser.h"
#include "worker/data/jinja/lexer.h"
#include "worker/data/jinja/statements.h"
#include "worker/data/jinja/token_stream.h"

namespace tessera::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{4} << 20;
constexpr int kMaxDepth = 200;  // of statements inside each other

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Body parse() {
    Body body = parse_body({});
    if (tokens_.current().kind != TokenKind::kEnd) tokens_.fail("unexpected tag");
    return body;
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  // Until a tag of one of the names, which is then the current token; without names, to the end.
  Body parse_body(Names ends) {
    if (++depth_ > kMaxDepth) tokens_.fail("statements are nested too deep");
    Body body;
    while (true) {
      const Token& token = tokens_.current();
      if (token.kind == TokenKind::kData) {
        body.push_back(std::make_unique<Text>(tokens_.take().text));
      } else if (token.kind == TokenKind::kVariableBegin) {
        tokens_.take();
        body.push_back(std::make_unique<Output>(expressions_.parse_tuple()));
        tokens_.expect(TokenKind::kVariableEnd, "'}}'");
      } else if (token.kind == TokenKind::kBlockBegin) {
        tokens_.take();
        const bool is_end = std::any_of(ends.begin(), ends.end(), [&](std::string_view end) {
          return tokens_.current().is_name(end);
        });
        if (is_end) break;
        body.push_back(parse_statement());
      } else {
        if (ends.size() > 0) tokens_.fail("expected {% " + std::string(*(ends.end() - 1)) + " %}");
        break;
      }
    }
    --depth_;
    return body;
  }

  // After a tag of a block with a body: the body, and the tag that ends it.
  Body parse_block(std::string_view end) {
    expect_tag_end();
    Body body = parse_body({end});
    tokens_.take();
    expect_tag_end();
    return body;
  }

  void expect_tag_end() { tokens_.expect(TokenKind::kBlockEnd, "'%}'"); }

  StatementPtr parse_statement() {
    using Parse = StatementPtr (Parser::*)();
    constexpr std::pair<const char*, Parse> kStatements[] = {
        {"if", &Parser::parse_if},       {"for", &Parser::parse_for},
        {"set", &Parser::parse_set},     {"macro", &Parser::parse_macro},
        {"call", &Parser::parse_call},   {"filter", &Parser::parse_filter},
        {"with", &Parser::parse_with},   {"generation", &Parser::parse_generation},
        {"break", &Parser::parse_break}, {"continue", &Parser::parse_continue},
    };
    for (const auto& [name, parse] : kStatements) {
      if (!tokens_.take_name(name)) continue;
      return (this->*parse)();
    }
    tokens_.fail("expected a statement of chat templates");
  }

  StatementPtr parse_if() {
    auto node = std::make_unique<If>();
    while (true) {
      If::Branch branch;
      branch.condition = expressions_.parse_tuple(false);
      expect_tag_end();
      branch.body = parse_body({"elif", "else", "endif"});
      node->branches.push_back(std::move(branch));
      if (!tokens_.take_name("elif")) break;
    }
    if (tokens_.take_name("else")) {
      expect_tag_end();
      node->branches.push_back({nullptr, parse_body({"endif"})});
    }
    tokens_.expect_name("endif");
    expect_tag_end();
    return node;
  }

  StatementPtr parse_for() {
    auto node = std::make_unique<For>();
    node->target = parse_target(false);
    tokens_.expect_name("in");
    node->items = expressions_.parse_tuple(false, "recursive");
    if (tokens_.take_name("if")) node->condition = expressions_.parse();
    node->is_recursive = tokens_.take_name("recursive");
    expect_tag_end();
    ++num_loops_;
    node->body = parse_body({"endfor", "else"});
    --num_loops_;
    if (tokens_.take_name("else")) {
      expect_tag_end();
      node->otherwise = parse_body({"endfor"});
    }
    tokens_.expect_name("endfor");
    expect_tag_end();
    return node;
  }

  Target parse_one_target(bool with_namespace) {
    if (tokens_.take_operator("(")) {
      Target target = parse_target(with_namespace);
      tokens_.expect_operator(")");
      return target;
    }
    Target target;
    target.name = tokens_.expect(TokenKind::kName, "a name to set").text;
    for (const auto* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == constant) tokens_.fail("'" + target.name + "' cannot be set");
    }
    if (with_namespace && tokens_.take_operator(".")) {
      target.attribute = tokens_.expect(TokenKind::kName, "a name after '.'").text;
    }
    return target;
  }

  Target parse_target(bool with_namespace) {
    Target first = parse_one_target(with_namespace);
    if (!tokens_.current().is_operator(",")) return first;
    Target all;
    all.tuple.push_back(std::move(first));
    while (tokens_.take_operator(",")) {
      const Token& token = tokens_.current();
      if (token.kind != TokenKind::kName && !token.is_operator("(")) break;
      if (token.is_name("in")) break;
      all.tuple.push_back(parse_one_target(with_namespace));
    }
    return all;
  }

  StatementPtr parse_set() {
    Target target = parse_target(true);
    if (tokens_.take_operator("=")) {
      auto node = std::make_unique<Set>();
      node->target = std::move(target);
      node->value = expressions_.parse_tuple();
      expect_tag_end();
      return node;
    }
    auto node = std::make_unique<SetBlock>();
    node->target = std::move(target);
    node->filter = expressions_.parse_filters(true);
    node->body = parse_captured("endset");
    return node;
  }

  // A body that break and continue cannot leave.
  Body parse_captured(std::string_view end) {
    const int num_loops = std::exchange(num_loops_, 0);
    Body body = parse_block(end);
    num_loops_ = num_loops;
    return body;
  }

  void parse_signature(MacroDefinition& definition) {
    tokens_.expect_operator("(");
    while (!tokens_.take_operator(")")) {
      if (!definition.parameters.empty()) {
        tokens_.expect_operator(",");
        if (tokens_.take_operator(")")) break;
      }
      definition.parameters.push_back(tokens_.expect(TokenKind::kName, "a parameter").text);
      if (tokens_.take_operator("=")) {
        definition.defaults.push_back(expressions_.parse());
      } else if (!definition.defaults.empty()) {
        tokens_.fail("a parameter without a default follows one with a default");
      }
    }
  }

  void parse_macro_body(MacroDefinition& definition, std::string_view end) {
    const bool saw_caller = std::exchange(expressions_.saw_caller, false);
    const bool saw_kwargs = std::exchange(expressions_.saw_kwargs, false);
    const bool saw_varargs = std::exchange(expressions_.saw_varargs, false);
    definition.body = parse_captured(end);
    definition.uses_caller = expressions_.saw_caller;
    definition.uses_kwargs = expressions_.saw_kwargs;
    definition.uses_varargs = expressions_.saw_varargs;
    expressions_.saw_caller |= saw_caller;
    expressions_.saw_kwargs |= saw_kwargs;
    expressions_.saw_varargs |= saw_varargs;
  }

  StatementPtr parse_macro() {
    auto node = std::make_unique<MacroStatement>();
    node->definition.name = tokens_.expect(TokenKind::kName, "the macro's name").text;
    parse_signature(node->definition);
    parse_macro_body(node->definition, "endmacro");
    return node;
  }

  StatementPtr parse_call() {
    auto node = std::make_unique<CallBlock>();
    node->caller.name = "caller";
    if (tokens_.current().is_operator("(")) parse_signature(node->caller);
    const int line = tokens_.current().line;
    ExpressionPtr call = expressions_.parse();
    if (!dynamic_cast<const Call*>(call.get())) {
      throw Error("line " + std::to_string(line) + ": {% call %} needs a call of a macro");
    }
    node->call.reset(static_cast<const Call*>(call.release()));
    parse_macro_body(node->caller, "endcall");
    return node;
  }

  StatementPtr parse_filter() {
    auto node = std::make_unique<FilterBlock>();
    node->filter = expressions_.parse_filters(false);
    node->body = parse_captured("endfilter");
    return node;
  }

  StatementPtr parse_with() {
    auto node = std::make_unique<With>();
    while (tokens_.current().kind != TokenKind::kBlockEnd) {
      if (!node->variables.empty()) tokens_.expect_operator(",");
      Target target = parse_one_target(false);
      tokens_.expect_operator("=");
      node->variables.emplace_back(std::move(target), expressions_.parse());
    }
    node->body = parse_block("endwith");
    return node;
  }

  StatementPtr parse_generation() {
    auto node = std::make_unique<Generation>();
    node->body = parse_captured("endgeneration");
    return node;
  }

  StatementPtr parse_control(Flow flow, const std::string& name) {
    if (num_loops_ == 0) tokens_.fail("{% " + name + " %} is outside of a loop");
    expect_tag_end();
    return std::make_unique<LoopControl>(flow);
  }
  StatementPtr parse_break() { return parse_control(Flow::kBreak, "break"); }
  StatementPtr parse_continue() { return parse_control(Flow::kContinue, "continue"); }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;
  int num_loops_ = 0;  // around, that break and continue reach
};

}  // namespace

Body parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    throw Error("the template is above " + std::to_string(kMaxSourceBytes >> 20) + " MiB");
  }
  return Parser(source).parse();
}

}  // namespace tessera::jinja
