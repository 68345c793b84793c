#include "worker/data/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "worker/data/jinja/value.h"
#include "worker/data/utf8.h"

namespace tessera::jinja {
namespace {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

utf8proc_category_t category_of(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

// Characters whose upper or title case is several: the unconditional mappings of Unicode's
// SpecialCasing.txt that occur in running text.
struct SpecialCase {
  char32_t from;
  const char* upper;
  const char* title;
};
constexpr SpecialCase kSpecialCases[] = {
    {0x00DF, "SS", "Ss"}, {0x0149, "ʼN", "ʼN"}, {0x01F0, "J̌", "J̌"},     {0x0390, "Ϊ́", "Ϊ́"},
    {0x03B0, "Ϋ́", "Ϋ́"},   {0x0587, "ԵՒ", "Եւ"}, {0x1E96, "H̱", "H̱"},     {0x1E97, "T̈", "T̈"},
    {0x1E98, "W̊", "W̊"},   {0x1E99, "Y̊", "Y̊"},   {0x1E9A, "Aʾ", "Aʾ"},   {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"}, {0xFB02, "FL", "Fl"}, {0xFB03, "FFI", "Ffi"}, {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"}, {0xFB06, "ST", "St"},
};

void append_cased(char32_t code_point, bool as_title, std::string& out) {
  for (const auto& special : kSpecialCases) {
    if (special.from != code_point) continue;
    out += as_title ? special.title : special.upper;
    return;
  }
  const auto c = static_cast<utf8proc_int32_t>(code_point);
  append_utf8(static_cast<char32_t>(as_title ? utf8proc_totitle(c) : utf8proc_toupper(c)), out);
}

bool is_cased(char32_t code_point) {
  const auto category = category_of(code_point);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

// Whether the sigma that starts at `at` ends a word: letters before it, none after.
bool is_final_sigma(std::string_view text, size_t at, size_t after) {
  if (at == 0 || !is_cased(last_code_point(text.substr(0, at)).value)) return false;
  return after >= text.size() || !is_cased(first_code_point(text.substr(after)).value);
}

void append_lower(std::string_view text, size_t at, CodePoint c, std::string& out) {
  if (c.value == 0x03A3) {
    append_utf8(is_final_sigma(text, at, at + static_cast<size_t>(c.num_bytes)) ? 0x03C2 : 0x03C3,
                out);
  } else if (c.value == 0x0130) {
    out += "i̇";
  } else {
    append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))),
                out);
  }
}

template <typename Body>
void for_each_code_point(std::string_view text, Body body) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    body(i, c);
    i += static_cast<size_t>(c.num_bytes);
  }
}

bool is_among(std::string_view character, std::optional<std::string_view> characters) {
  if (!characters) return is_space(first_code_point(character).value);
  const auto all = code_points(*characters);
  return std::find(all.begin(), all.end(), character) != all.end();
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::vector<std::string_view> words(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text = strip_left(text);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(strip_right(text));
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const CodePoint c = first_code_point(text.substr(end));
      if (is_space(c.value)) break;
      end += static_cast<size_t>(c.num_bytes);
    }
    parts.push_back(text.substr(0, end));
    text = strip_left(text.substr(end));
  }
  return parts;
}

std::vector<std::string_view> words_from_right(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  text = strip_right(text);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(strip_left(text));
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      const CodePoint c = last_code_point(text.substr(0, begin));
      if (is_space(c.value)) break;
      begin -= static_cast<size_t>(c.num_bytes);
    }
    parts.push_back(text.substr(begin));
    text = strip_right(text.substr(0, begin));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category_of(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string hex(char32_t value, int digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(static_cast<size_t>(digits), '0');
  for (int i = digits - 1; i >= 0; --i, value >>= 4) {
    text[static_cast<size_t>(i)] = kDigits[value & 15];
  }
  return text;
}

std::string escaped(char32_t c) {
  if (c < 0x100) return "\\x" + hex(c, 2);
  if (c < 0x10000) return "\\u" + hex(c, 4);
  return "\\U" + hex(c, 8);
}

}  // namespace

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t c) {
  const auto category = category_of(c);
  return is_cased(c) || category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_ND; }
bool is_upper(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_LL; }

size_t num_code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }));
}

std::vector<std::string_view> code_points(std::string_view text) {
  std::vector<std::string_view> characters;
  characters.reserve(text.size());
  for_each_code_point(text, [&](size_t at, CodePoint c) {
    characters.push_back(text.substr(at, static_cast<size_t>(c.num_bytes)));
  });
  return characters;
}

std::string upper(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](size_t, CodePoint c) { append_cased(c.value, false, out); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](size_t at, CodePoint c) { append_lower(text, at, c, out); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for_each_code_point(text, [&](size_t at, CodePoint c) {
    if (at == 0) {
      append_cased(c.value, true, out);
    } else {
      append_lower(text, at, c, out);
    }
  });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each_code_point(text, [&](size_t at, CodePoint c) {
    if (in_word) {
      append_lower(text, at, c, out);
    } else {
      append_cased(c.value, true, out);
    }
    in_word = is_cased(c.value);
  });
  return out;
}

std::string_view strip_left(std::string_view text, std::optional<std::string_view> characters) {
  while (!text.empty()) {
    const auto bytes = static_cast<size_t>(first_code_point(text).num_bytes);
    if (!is_among(text.substr(0, bytes), characters)) break;
    text.remove_prefix(bytes);
  }
  return text;
}

std::string_view strip_right(std::string_view text, std::optional<std::string_view> characters) {
  while (!text.empty()) {
    const auto bytes = static_cast<size_t>(last_code_point(text).num_bytes);
    if (!is_among(text.substr(text.size() - bytes), characters)) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> characters) {
  return strip_right(strip_left(text, characters), characters);
}

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t limit) {
  if (!separator) return words(text, limit);
  if (separator->empty()) throw Error("split() has an empty separator");
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.find(*separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator->size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> split_from_right(std::string_view text,
                                               std::optional<std::string_view> separator,
                                               int64_t limit) {
  if (!separator) return words_from_right(text, limit);
  if (separator->empty()) throw Error("rsplit() has an empty separator");
  std::vector<std::string_view> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.rfind(*separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + separator->size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    size_t next = i + static_cast<size_t>(c.num_bytes);
    if (is_line_end(c.value)) {
      if (c.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t limit) {
  std::string out;
  const auto append = [&](std::string_view part) {
    if (out.size() + part.size() > kMaxTextBytes) throw Error("a text becomes too long");
    out += part;
  };
  if (from.empty()) {
    // Before each character, and at the end.
    const auto characters = code_points(text);
    for (size_t i = 0; i <= characters.size(); ++i) {
      if (limit < 0 || static_cast<int64_t>(i) < limit) append(to);
      if (i < characters.size()) append(characters[i]);
    }
    return out;
  }
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    append(text.substr(0, at));
    append(to);
    text.remove_prefix(at + from.size());
  }
  append(text);
  return out;
}

std::string python_quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for_each_code_point(text, [&](size_t at, CodePoint c) {
    if (c.value == static_cast<char32_t>(quote) || c.value == '\\') {
      out += '\\';
      out += static_cast<char>(c.value);
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (is_printable(c.value)) {
      out += text.substr(at, static_cast<size_t>(c.num_bytes));
    } else {
      out += escaped(c.value);
    }
  });
  return out + quote;
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace tessera::jinja
