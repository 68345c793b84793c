#include "worker/data/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "worker/data/jinja/string_literal.h"
#include "worker/data/jinja/text.h"
#include "worker/data/jinja/value.h"

namespace tessera::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// "\r\n" and "\r" become "\n"; one newline at the end goes.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) {
      const size_t tag = find_tag();
      if (tag == std::string_view::npos) {
        add(TokenKind::kData, std::string(rest_));
        skip(rest_.size());
        break;
      }
      lex_tag(tag);
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error("line " + std::to_string(line_) + ": " + problem);
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void skip(size_t count) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + count, '\n'));
    if (count > 0) at_line_start_ = rest_[count - 1] == '\n';
    rest_.remove_prefix(count);
  }

  size_t num_spaces(size_t from) const {
    return rest_.size() - from - strip_left(rest_.substr(from)).size();
  }

  // Bytes of "%}" and what goes with it: "-" takes the white space that follows, a plain one a
  // newline. 0 where there is none.
  size_t num_end_bytes(std::string_view end, size_t at, bool takes_newline) const {
    const auto text = rest_.substr(at);
    if (text.starts_with('-') && text.substr(1).starts_with(end)) {
      return 1 + end.size() + num_spaces(at + 1 + end.size());
    }
    if (takes_newline && text.starts_with('+') && text.substr(1).starts_with(end)) {
      return 1 + end.size();
    }
    if (!text.starts_with(end)) return 0;
    return end.size() + (takes_newline && text.substr(end.size()).starts_with('\n') ? 1 : 0);
  }

  size_t find_tag() const {
    for (size_t at = rest_.find('{'); at != std::string_view::npos; at = rest_.find('{', at + 1)) {
      if (at + 1 >= rest_.size()) break;
      const char kind = rest_[at + 1];
      if (kind == '{' || kind == '%' || kind == '#') return at;
    }
    return std::string_view::npos;
  }

  // The text before a tag whose own sign is `sign` ('-', '+' or neither).
  void add_text(std::string_view text, char sign, bool is_variable) {
    if (sign == '-') {
      text = strip_right(text);
    } else if (sign != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || at_line_start_) && strip_left(text.substr(line)).empty()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
  }

  char sign_at(size_t at) const {
    return at < rest_.size() && (rest_[at] == '-' || rest_[at] == '+') ? rest_[at] : '\0';
  }

  void lex_tag(size_t tag) {
    const char kind = rest_[tag + 1];
    if (kind == '%') {
      if (const size_t raw = num_raw_begin_bytes(tag)) {
        lex_raw(tag, raw);
        return;
      }
    }
    const char sign = sign_at(tag + 2);
    add_text(rest_.substr(0, tag), sign, kind == '{');
    skip(tag + 2 + (sign ? 1 : 0));
    if (kind == '#') {
      skip_comment();
    } else if (kind == '%') {
      add(TokenKind::kBlockBegin, "");
      lex_expression("%}", TokenKind::kBlockEnd);
    } else {
      add(TokenKind::kVariableBegin, "");
      lex_expression("}}", TokenKind::kVariableEnd);
    }
  }

  // Of "{% raw %}" at `tag`, or 0.
  size_t num_raw_begin_bytes(size_t tag) const {
    size_t at = tag + 2;
    if (sign_at(at)) ++at;
    at += num_spaces(at);
    if (!rest_.substr(at).starts_with("raw")) return 0;
    at += 3;
    at += num_spaces(at);
    const size_t end = num_end_bytes("%}", at, false);
    return end ? at + end - tag : 0;
  }

  void lex_raw(size_t tag, size_t num_begin_bytes) {
    add_text(rest_.substr(0, tag), sign_at(tag + 2), false);
    skip(tag + num_begin_bytes);
    for (size_t begin = rest_.find("{%"); begin != std::string_view::npos;
         begin = rest_.find("{%", begin + 1)) {
      size_t at = begin + 2;
      const char sign = sign_at(at);
      if (sign) ++at;
      at += num_spaces(at);
      if (!rest_.substr(at).starts_with("endraw")) continue;
      at += 6;
      at += num_spaces(at);
      const size_t end = num_end_bytes("%}", at, true);
      if (!end) continue;
      add_text(rest_.substr(0, begin), sign, false);
      skip(at + end);
      return;
    }
    fail("{% raw %} has no {% endraw %}");
  }

  void skip_comment() {
    size_t end = rest_.find("#}");
    if (end == std::string_view::npos) fail("a comment has no end");
    if (end > 0 && (rest_[end - 1] == '-' || rest_[end - 1] == '+')) --end;
    skip(end + num_end_bytes("#}", end, true));
  }

  void lex_expression(std::string_view end, TokenKind end_kind) {
    std::vector<char> open;
    while (true) {
      skip(num_spaces(0));
      if (rest_.empty()) fail("a tag has no end");
      if (open.empty()) {
        if (const size_t bytes = num_end_bytes(end, 0, end_kind == TokenKind::kBlockEnd)) {
          add(end_kind, "");
          skip(bytes);
          return;
        }
      }
      lex_token(open);
    }
  }

  void lex_token(std::vector<char>& open) {
    const char c = rest_[0];
    if (is_digit(c)) {
      lex_number();
    } else if (is_name_character(c)) {
      const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_name_character);
      const auto bytes = static_cast<size_t>(end - rest_.begin());
      add(TokenKind::kName, std::string(rest_.substr(0, bytes)));
      skip(bytes);
    } else if (c == '"' || c == '\'') {
      lex_string(c);
    } else {
      lex_operator(open);
    }
  }

  void lex_string(char quote) {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail("a string has no end");
    add(TokenKind::kString, unescape(rest_.substr(1, end - 1)));
    skip(end + 1);
  }

  // Digits with single underscores between them.
  size_t num_digits(size_t from) const {
    size_t at = from;
    while (at < rest_.size()) {
      const bool joins =
          rest_[at] == '_' && at > from && at + 1 < rest_.size() && is_digit(rest_[at + 1]);
      if (!is_digit(rest_[at]) && !joins) break;
      ++at;
    }
    return at - from;
  }

  void lex_number() {
    size_t end = num_digits(0);
    bool is_float = false;
    const bool is_member = !tokens_.empty() && tokens_.back().is_operator(".");
    if (!is_member) {
      if (end < rest_.size() && rest_[end] == '.' && num_digits(end + 1) > 0) {
        end += 1 + num_digits(end + 1);
        is_float = true;
      }
      if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
        const size_t sign = sign_at(end + 1) ? 1 : 0;
        if (const size_t digits = num_digits(end + 1 + sign)) {
          end += 1 + sign + digits;
          is_float = true;
        }
      }
    }
    std::string digits(rest_.substr(0, end));
    std::erase(digits, '_');
    if (!is_float && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) {
      fail("an integer starts with 0");
    }
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits);
    skip(end);
  }

  void lex_operator(std::vector<char>& open) {
    for (const auto op : kOperators) {
      if (!rest_.starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") {
        open.push_back(op == "(" ? ')' : op == "[" ? ']' : '}');
      } else if (op == ")" || op == "]" || op == "}") {
        if (open.empty() || open.back() != op[0]) fail("unexpected '" + std::string(op) + "'");
        open.pop_back();
      }
      add(TokenKind::kOperator, std::string(op));
      skip(op.size());
      return;
    }
    fail("unexpected character '" + std::string(code_points(rest_.substr(0, 4)).front()) + "'");
  }

  const std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool at_line_start_ = true;  // the last token, or nothing, ended with a newline
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace tessera::jinja
