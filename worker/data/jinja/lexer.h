// Splits a template into text and the tokens of its tags, as jinja2 does with trim_blocks and
// lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

enum class TokenKind {
  kData,  // text outside of tags
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,  // its value, unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;  // the first is 1

  bool is(TokenKind wanted, std::string_view value) const {
    return kind == wanted && text == value;
  }
  bool is_name(std::string_view value) const { return is(TokenKind::kName, value); }
  bool is_operator(std::string_view value) const { return is(TokenKind::kOperator, value); }
};

// Ends with kEnd. Throws Error "line 3: ...".
std::vector<Token> tokenize(std::string_view source);

}  // namespace tessera::jinja
