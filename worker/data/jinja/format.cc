#include "worker/data/jinja/format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/members.h"
#include "worker/data/jinja/text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxWidth = 100'000;

// [[fill]align][sign][#][0][width][,][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = '\0';  // of < > ^ =, or none
  char sign = '-';
  bool has_commas = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int64_t take_number(std::string_view& text) {
  int64_t number = 0;
  while (!text.empty() && is_digit(text[0])) {
    number = number * 10 + (text[0] - '0');
    if (number > kMaxWidth) throw Error("a width in a format is too large");
    text.remove_prefix(1);
  }
  return number;
}

std::string padded(const std::string& text, const Spec& spec, char default_align) {
  const auto missing = spec.width - static_cast<int64_t>(num_code_points(text));
  if (missing <= 0) return text;
  const auto filled = [&](int64_t times) {
    std::string out;
    for (int64_t i = 0; i < times; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align ? spec.align : default_align) {
    case '>':
      return filled(missing) + text;
    case '^':
      return filled(missing / 2) + text + filled(missing - missing / 2);
    case '=': {
      const bool has_sign = text.starts_with('-') || text.starts_with('+') || text.starts_with(' ');
      return text.substr(0, has_sign) + filled(missing) + text.substr(has_sign);
    }
    default:
      return text + filled(missing);
  }
}

std::string with_commas(std::string digits) {
  const size_t point = digits.find_first_of('.');
  for (size_t i = point == std::string::npos ? digits.size() : point; i > 3; i -= 3) {
    digits.insert(i - 3, ",");
  }
  return digits;
}

std::string with_sign(bool is_negative, const std::string& digits, const Spec& spec) {
  std::string out;
  if (is_negative || spec.sign != '-') out += is_negative ? '-' : spec.sign;
  out += spec.has_commas ? with_commas(digits) : digits;
  return out;
}

std::string format_integer(int64_t value, const Spec& spec) {
  const int base = spec.type == 'x' || spec.type == 'X' ? 16
                   : spec.type == 'o'                   ? 8
                   : spec.type == 'b'                   ? 2
                                                        : 10;
  const uint64_t magnitude =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  char digits[72];
  const auto end = std::to_chars(digits, digits + sizeof(digits), magnitude, base);
  std::string text(digits, end.ptr);
  if (spec.type == 'X') text = upper(text);
  return with_sign(value < 0, text, spec);
}

std::string format_float(double value, const Spec& spec) {
  const double magnitude = std::abs(value);
  std::string text;
  if (!std::isfinite(value)) {
    text = float_text(magnitude);
  } else if (spec.type == '\0' && spec.precision < 0) {
    text = float_text(magnitude);
  } else {
    const auto form = spec.type == 'e' || spec.type == 'E' ? std::chars_format::scientific
                      : spec.type == 'f' || spec.type == 'F' || spec.type == '%'
                          ? std::chars_format::fixed
                          : std::chars_format::general;
    const int precision =
        static_cast<int>(spec.precision < 0 ? 6 : std::min<int64_t>(spec.precision, 400));
    std::array<char, 1200> digits;
    const double shown = spec.type == '%' ? magnitude * 100 : magnitude;
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), shown, form, precision);
    text.assign(digits.data(), end.ptr);
    if (spec.type == '%') text += '%';
  }
  return with_sign(std::signbit(value) && !std::isnan(value), text, spec);
}

bool is_integer_type(char type) {
  return type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' || type == 'o' ||
         type == 'b';
}

bool is_float_type(char type) {
  return type == 'e' || type == 'E' || type == 'f' || type == 'F' || type == 'g' || type == 'G' ||
         type == '%';
}

// The digits of a number, not padded. Throws Error where the type does not fit.
std::string format_number(const Value& value, const Spec& spec) {
  const auto integer = value.integer();
  if (is_float_type(spec.type) && value.number()) return format_float(*value.number(), spec);
  if (integer && (spec.type == '\0' || is_integer_type(spec.type))) {
    return format_integer(*integer, spec);
  }
  if (value.is_float() && spec.type == '\0') return format_float(*value.number(), spec);
  require_defined(value);
  throw Error("the format '" + std::string(1, spec.type) + "' does not fit a value of type " +
              type_name(value));
}

std::string cut(std::string text, int64_t precision) {
  if (precision < 0) return text;
  const auto characters = code_points(text);
  if (static_cast<int64_t>(characters.size()) <= precision) return text;
  size_t bytes = 0;
  for (int64_t i = 0; i < precision; ++i) bytes += characters[static_cast<size_t>(i)].size();
  text.resize(bytes);
  return text;
}

// What follows the % of one place.
struct PercentFormatter {
  std::string_view rest;
  const Value& arguments;
  size_t next = 0;

  const Value& take_argument() {
    const auto* tuple = arguments.sequence();
    const bool is_tuple = tuple && tuple->kind == SequenceKind::kTuple;
    const size_t count = is_tuple ? tuple->items.size() : 1;
    if (next >= count) throw Error("there are too few values for a format");
    const size_t index = next++;
    return is_tuple ? tuple->items[index] : arguments;
  }

  bool used_all() const {
    const auto* tuple = arguments.sequence();
    if (tuple && tuple->kind == SequenceKind::kTuple) return next == tuple->items.size();
    return next > 0 || arguments.is_undefined() || arguments.is_dict() ||
           (tuple && tuple->kind == SequenceKind::kList);
  }

  Value take_named() {
    const size_t end = rest.find(')');
    if (end == std::string_view::npos || !arguments.is_dict()) {
      throw Error("a format with a name needs a dict");
    }
    const Value* value = arguments.dict()->find_name(rest.substr(1, end - 1));
    if (!value) throw Error("a format names a key that is not there");
    rest.remove_prefix(end + 1);
    return *value;
  }

  std::string take_place() {
    Spec spec;
    std::optional<Value> named;
    if (rest.starts_with('(')) named = take_named();
    for (; !rest.empty(); rest.remove_prefix(1)) {
      if (rest[0] == '-') {
        spec.align = '<';
      } else if (rest[0] == '0') {
        if (!spec.align) spec.align = '=', spec.fill = "0";
      } else if (rest[0] == '+' || rest[0] == ' ') {
        spec.sign = rest[0];
      } else if (rest[0] != '#') {
        break;
      }
    }
    if (spec.align == '<') spec.fill = " ";
    spec.width = take_number(rest);
    if (rest.starts_with('.')) {
      rest.remove_prefix(1);
      spec.precision = take_number(rest);
    }
    if (rest.empty()) throw Error("a format ends in the middle");
    spec.type = rest[0];
    rest.remove_prefix(1);
    if (spec.type == '%') return "%";
    return format_one(named ? *named : take_argument(), spec);
  }

  static std::string format_one(const Value& value, Spec spec) {
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      if (spec.align == '=') spec.align = '>', spec.fill = " ";
      std::string text = spec.type == 's' ? to_text(value) : repr(value);
      return padded(cut(std::move(text), spec.precision), spec, '>');
    }
    if (is_integer_type(spec.type) && value.is_float()) {
      return padded(format_integer(static_cast<int64_t>(*value.number()), spec), spec, '>');
    }
    if (!is_integer_type(spec.type) && !is_float_type(spec.type)) {
      throw Error("the format '%" + std::string(1, spec.type) + "' is not supported");
    }
    return padded(format_number(value, spec), spec, '>');
  }
};

Spec parse_spec(std::string_view text) {
  Spec spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const auto characters = code_points(text);
  if (characters.size() > 1 && characters[1].size() == 1 && is_align(characters[1][0])) {
    spec.fill = std::string(characters[0]);
    spec.align = characters[1][0];
    text.remove_prefix(characters[0].size() + 1);
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty() && (text[0] == '+' || text[0] == '-' || text[0] == ' ')) {
    spec.sign = text[0];
    text.remove_prefix(1);
  }
  if (text.starts_with('0')) {
    if (!spec.align) spec.align = '=', spec.fill = "0";
    text.remove_prefix(1);
  }
  spec.width = take_number(text);
  if (text.starts_with(',')) {
    spec.has_commas = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    spec.precision = take_number(text);
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty()) throw Error("a format is not supported");
  return spec;
}

std::string format_with(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  const Spec spec = parse_spec(text);
  if (value.number() && !value.is_bool()) return padded(format_number(value, spec), spec, '>');
  if (!value.is_string() && !value.is_bool()) throw Error("only texts and numbers have a format");
  if (value.is_bool() && spec.type) return padded(format_number(value, spec), spec, '>');
  return padded(cut(to_text(value), spec.precision), spec, '<');
}

class BraceFormatter {
 public:
  explicit BraceFormatter(const Arguments& arguments) : arguments_(arguments) {}

  // What stands between braces: [name]("." name | "[" key "]")* ["!" conversion] [":" spec].
  std::string place(std::string_view field) {
    const size_t colon = field.find(':');
    const auto spec = colon == std::string_view::npos ? "" : field.substr(colon + 1);
    field = field.substr(0, colon);
    char conversion = '\0';
    if (field.size() > 1 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    Value value = lookup(field);
    if (conversion == 'r') value = repr(value);
    if (conversion == 's') value = to_text(value);
    return format_with(value, spec);
  }

 private:
  Value lookup(std::string_view field) {
    const size_t end = std::min(field.find_first_of(".["), field.size());
    Value value = first(field.substr(0, end));
    field.remove_prefix(end);
    while (!field.empty()) {
      const bool is_item = field[0] == '[';
      const size_t stop =
          is_item ? field.find(']') : std::min(field.find_first_of(".[", 1), field.size());
      if (stop == std::string_view::npos) throw Error("a format has no ']'");
      const auto name = field.substr(1, stop - 1);
      value = is_item ? item_of(value, index_or_name(name)) : attribute_of(value, name);
      field.remove_prefix(is_item ? stop + 1 : stop);
    }
    return value;
  }

  static Value index_or_name(std::string_view name) {
    const bool is_index = !name.empty() && std::all_of(name.begin(), name.end(), is_digit);
    if (!is_index) return name;
    return take_number(name);
  }

  Value first(std::string_view name) {
    const bool is_index = std::all_of(name.begin(), name.end(), is_digit);
    if (is_index) {
      const auto index = name.empty() ? next_++ : static_cast<size_t>(take_number(name));
      if (index >= arguments_.positional.size()) throw Error("a format has too few values");
      return arguments_.positional[index];
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    throw Error("a format names '" + std::string(name) + "', which is not given");
  }

  const Arguments& arguments_;
  size_t next_ = 0;
};

}  // namespace

std::string percent_format(std::string_view format, const Value& arguments) {
  PercentFormatter formatter{format, arguments};
  std::string out;
  while (!formatter.rest.empty()) {
    const size_t at = std::min(formatter.rest.find('%'), formatter.rest.size());
    out += formatter.rest.substr(0, at);
    formatter.rest.remove_prefix(at);
    if (formatter.rest.empty()) break;
    formatter.rest.remove_prefix(1);
    out += formatter.take_place();
    check_text_size(out.size());
  }
  if (!formatter.used_all()) throw Error("not all values of a format are used");
  return out;
}

std::string brace_format(std::string_view format, const Arguments& arguments) {
  BraceFormatter formatter(arguments);
  std::string out;
  while (!format.empty()) {
    const size_t at = std::min(format.find_first_of("{}"), format.size());
    out += format.substr(0, at);
    format.remove_prefix(at);
    if (format.empty()) break;
    if (format.size() > 1 && format[1] == format[0]) {
      out += format[0];
      format.remove_prefix(2);
      continue;
    }
    const size_t end = format.find('}');
    if (format[0] == '}' || end == std::string_view::npos)
      throw Error("a format has a single brace");
    out += formatter.place(format.substr(1, end - 1));
    format.remove_prefix(end + 1);
    check_text_size(out.size());
  }
  return out;
}

}  // namespace tessera::jinja
