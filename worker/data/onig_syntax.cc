#include "worker/data/onig_syntax.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <vector>

namespace tessera {
namespace {

constexpr std::string_view kWordMembers = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Oniguruma counts these as word characters too, but not inside a class.
constexpr std::string_view kLatin1Numbers = R"(\xB2\xB3\xB9\xBC-\xBE)";

struct Named {
  std::string_view name;
  std::string_view members;
};
constexpr Named kPosixClasses[] = {
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"digit", R"(\p{Nd})"},
    {"lower", R"(\p{Lowercase})"},
    {"punct", R"(\p{P}\p{S})"},
    {"space", R"(\p{White_Space})"},
    {"upper", R"(\p{Uppercase})"},
    {"word", kWordMembers},
    {"xdigit", "0-9A-Fa-f"},
};
// Properties of more than two letters that are not the names of scripts.
constexpr std::string_view kBinaryProperties[] = {"Alphabetic", "Any",  "Emoji",     "Ideographic",
                                                  "Lowercase",  "Math", "Uppercase", "White_Space"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (!done()) {
      switch (peek()) {
        case '\\':
          escape();
          break;
        case '[':
          begin_atom();
          character_class();
          break;
        case '(':
          open_group();
          break;
        case ')':
          close_group();
          break;
        case '{':
        case '*':
        case '+':
        case '?':
          quantifier();
          break;
        default:
          begin_atom();
          literal();
      }
    }
    return std::move(out_);
  }

 private:
  bool done() const { return at_ >= in_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void copy(size_t count) {
    out_.append(in_.substr(at_, count));
    at_ += count;
  }
  // Where a quantifier that follows would take hold.
  void begin_atom() { atom_ = out_.size(); }
  [[noreturn]] void refuse(const std::string& construct) const {
    throw std::invalid_argument("the construct " + construct + " at offset " + std::to_string(at_) +
                                " is not supported");
  }

  void literal() {
    do copy(1);
    while ((static_cast<unsigned char>(peek()) & 0xC0) == 0x80);
  }

  void escape() {
    begin_atom();
    const char kind = peek(1);
    const std::string members = std::string(kWordMembers).append(kLatin1Numbers);
    const std::string word = "[" + members + "]";
    const std::string not_word = "[^" + members + "]";
    switch (kind) {
      case 'w':
        return replace(word);
      case 'W':
        return replace(not_word);
      case 'h':
        return replace("[0-9A-Fa-f]");
      case 'H':
        return replace("[^0-9A-Fa-f]");
      case 'b':
        return replace("(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))");
      case 'B':
        return replace("(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))");
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
        return copy(2);
      default:
        return shared_escape();
    }
  }

  // Those that mean the same inside a class and outside.
  void shared_escape() {
    const char kind = peek(1);
    switch (kind) {
      case 's':
        return replace(R"(\p{White_Space})");
      case 'S':
        return replace(R"(\P{White_Space})");
      case 'd':
      case 'D':
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        return copy(2);
      case 'v':
        return replace(R"(\x0B)");
      case 'p':
      case 'P':
        return property();
      case 'x':
        return hexadecimal();
      case 'u':
        return code_unit();
      default:
        if (kind == '\0') throw std::invalid_argument("the pattern ends in a backslash");
        if (std::isalnum(static_cast<unsigned char>(kind))) refuse(std::string("\\") + kind);
        copy(1);
        literal();
    }
  }

  void replace(std::string_view text) {
    out_.append(text);
    at_ += 2;
  }

  // \p{L}, \P{L}, \p{^L}. PCRE2 takes \p{Han} for the characters used in Han text, not those of
  // that script.
  void property() {
    const size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse(R"(\p without {})");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const bool script =
        name.size() > 2 && std::find(std::begin(kBinaryProperties), std::end(kBinaryProperties),
                                     name) == std::end(kBinaryProperties);
    out_.append((peek(1) == 'P') != negated ? R"(\P{)" : R"(\p{)");
    out_.append(script ? "sc:" : "").append(name).append("}");
    at_ = close + 1;
  }

  // \x{41} and \x41.
  void hexadecimal() {
    if (peek(2) == '{') {
      const size_t close = in_.find('}', at_);
      if (close == std::string_view::npos) refuse(R"(\x{ without })");
      return copy(close + 1 - at_);
    }
    size_t digits = 0;
    while (digits < 2 && std::isxdigit(static_cast<unsigned char>(peek(2 + digits)))) ++digits;
    if (digits == 0) refuse(R"(\x without digits)");
    out_.append(R"(\x{)").append(in_.substr(at_ + 2, digits)).append("}");
    at_ += 2 + digits;
  }

  void code_unit() {
    for (size_t i = 2; i < 6; ++i) {
      if (!std::isxdigit(static_cast<unsigned char>(peek(i)))) refuse("\\u without four digits");
    }
    out_.append(R"(\x{)").append(in_.substr(at_ + 2, 4)).append("}");
    at_ += 6;
  }

  void character_class() {
    const size_t opened = at_;
    copy(peek(1) == '^' ? 2 : 1);
    for (bool first = true; first || peek() != ']'; first = false) {
      if (done()) {
        at_ = opened;
        refuse("[ without ]");
      }
      if (peek() == '[' && peek(1) != ':') refuse("of a class inside a class");
      if (peek() == '&' && peek(1) == '&') refuse("&&");
      if (peek() == '[') {
        posix_class();
      } else if (peek() == '\\') {
        class_escape();
      } else {
        literal();
      }
    }
    copy(1);
  }

  void posix_class() {
    const size_t close = in_.find(":]", at_);
    const auto name = in_.substr(at_ + 2, close - at_ - 2);
    for (const Named& known : kPosixClasses) {
      if (close == std::string_view::npos || name != known.name) continue;
      out_.append(known.members);
      at_ = close + 2;
      return;
    }
    refuse("[:" + std::string(name.substr(0, 16)) + ":]");
  }

  void class_escape() {
    switch (peek(1)) {
      case 'w':
        return replace(kWordMembers);
      case 'h':
        return replace("0-9A-Fa-f");
      case 'b':
        return replace(R"(\x08)");
      case 'W':
      case 'H':
        refuse(std::string("\\") + peek(1) + " in a class");
      default:
        return shared_escape();
    }
  }

  void open_group() {
    groups_.push_back(out_.size());
    if (peek(1) != '?') return copy(1);
    const char kind = peek(2);
    if (std::string_view(":=!>#").find(kind) != std::string_view::npos) return copy(3);
    if (kind == '<' && (peek(3) == '=' || peek(3) == '!')) return copy(4);
    if (kind == '<' && (std::isalpha(static_cast<unsigned char>(peek(3))) || peek(3) == '_')) {
      return copy(3);
    }
    copy(2);
    while (peek() != ':' && peek() != ')') {
      switch (peek()) {
        case 'i':
        case 'x':
        case '-':
          copy(1);
          break;
        case 'm':  // "dot matches newline", which is s in PCRE2
          out_.push_back('s');
          ++at_;
          break;
        default:
          refuse("(?" + std::string(1, kind));
      }
    }
    if (peek() == ':') return copy(1);
    copy(1);  // "(?i)" is no group
    groups_.pop_back();
  }

  void close_group() {
    if (groups_.empty()) refuse(") without (");
    atom_ = groups_.back();
    groups_.pop_back();
    copy(1);
  }

  void quantifier() {
    if (peek() != '{') {
      copy(1);
      if (peek() == '?' || peek() == '+') copy(1);
      return;
    }
    const auto close = interval_end();
    if (!close) {  // no interval: a plain brace
      begin_atom();
      out_.push_back('\\');
      return copy(1);
    }
    if (peek(1) == ',') {  // {,n} means {0,n}, which PCRE2 10.42 does not know
      out_.append("{0");
      ++at_;
    }
    copy(*close + 1 - at_);
    if (peek() == '?') return copy(1);
    if (peek() == '+') {
      out_.insert(*atom_, "(?:");
      out_.append(")+");
      ++at_;
    }
  }

  // Of {n}, {n,}, {n,m} or {,m} at the cursor; none where it is not one of those.
  std::optional<size_t> interval_end() const {
    size_t end = at_ + 1;
    size_t num_digits = 0;
    size_t num_commas = 0;
    for (; end < in_.size() && in_[end] != '}'; ++end) {
      if (std::isdigit(static_cast<unsigned char>(in_[end]))) {
        ++num_digits;
      } else if (in_[end] == ',' && num_commas == 0) {
        ++num_commas;
      } else {
        return std::nullopt;
      }
    }
    if (end >= in_.size() || num_digits == 0 || !atom_) return std::nullopt;
    return end;
  }

  const std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  std::optional<size_t> atom_;
  std::vector<size_t> groups_;  // where open ones begin in out_
};

}  // namespace

std::string pcre_from_onig(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace tessera
