// A template's tokens, read from the front.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/data/jinja/lexer.h"
#include "worker/data/jinja/value.h"

namespace tessera::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[next_]; }
  const Token& following() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  // Returns the current token and goes on.
  const Token& take() { return tokens_[next_ + 1 < tokens_.size() ? next_++ : next_]; }

  bool take_operator(std::string_view text) { return take_if(current().is_operator(text)); }
  bool take_name(std::string_view text) { return take_if(current().is_name(text)); }

  void expect_operator(std::string_view text) {
    if (!take_operator(text)) fail("expected '" + std::string(text) + "'");
  }
  void expect_name(std::string_view text) {
    if (!take_name(text)) fail("expected '" + std::string(text) + "'");
  }
  const Token& expect(TokenKind kind, const std::string& what) {
    if (current().kind != kind) fail("expected " + what);
    return take();
  }

  [[noreturn]] void fail(const std::string& problem) const {
    const Token& token = current();
    const std::string found = token.kind == TokenKind::kEnd        ? "the end of the template"
                              : token.kind == TokenKind::kBlockEnd ? "'%}'"
                              : token.kind == TokenKind::kVariableEnd
                                  ? "'}}'"
                                  : "'" + token.text.substr(0, 40) + "'";
    throw Error("line " + std::to_string(token.line) + ": " + problem + ", found " + found);
  }

 private:
  bool take_if(bool wanted) {
    if (wanted) take();
    return wanted;
  }

  std::vector<Token> tokens_;
  size_t next_ = 0;
};

}  // namespace tessera::jinja
