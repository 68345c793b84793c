#include "worker/data/jinja/string_literal.h"

#include <charconv>

#include "worker/data/jinja/value.h"
#include "worker/data/utf8.h"

namespace tessera::jinja {
namespace {

constexpr std::string_view kSimple = "\\'\"abfnrtv";
constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";

bool is_octal(char c) { return c >= '0' && c <= '7'; }

void append_code_point(std::string_view digits, size_t num_digits, std::string& out) {
  uint32_t value = 0;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  const bool complete = digits.size() == num_digits && end.ptr == digits.data() + digits.size();
  if (!complete || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    throw Error("a string holds an escape that is no character");
  }
  append_utf8(value, out);
}

// The escape whose letter stands at `at`. Returns where it ends.
size_t append_escape(std::string_view text, size_t at, std::string& out) {
  const char c = text[at];
  if (const size_t simple = kSimple.find(c); simple != std::string_view::npos) {
    out += kMeaning[simple];
    return at + 1;
  }
  if (c == '\n') return at + 1;  // a line that goes on
  if (c == 'x' || c == 'u' || c == 'U') {
    const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    append_code_point(text.substr(at + 1, num_digits), num_digits, out);
    return at + 1 + num_digits;
  }
  if (is_octal(c)) {
    char32_t value = 0;
    size_t end = at;
    while (end < text.size() && end < at + 3 && is_octal(text[end])) {
      value = value * 8 + static_cast<char32_t>(text[end++] - '0');
    }
    append_utf8(value, out);
    return end;
  }
  if (c == 'N') throw Error("\\N{...} in a string is not supported");
  out += '\\';
  return at;
}

}  // namespace

std::string unescape(std::string_view literal) {
  std::string out;
  out.reserve(literal.size());
  for (size_t i = 0; i < literal.size();) {
    if (literal[i] != '\\' || i + 1 >= literal.size()) {
      out += literal[i++];
    } else {
      i = append_escape(literal, i + 1, out);
    }
  }
  return out;
}

}  // namespace tessera::jinja
