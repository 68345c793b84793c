#include "worker/data/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "worker/data/character_classes.h"
#include "worker/data/jinja/format.h"
#include "worker/data/jinja/json_text.h"
#include "worker/data/jinja/members.h"
#include "worker/data/jinja/operators.h"
#include "worker/data/jinja/parameters.h"
#include "worker/data/jinja/string_methods.h"
#include "worker/data/jinja/text.h"
#include "worker/data/utf8.h"

namespace tessera::jinja {
namespace {

Value to_json(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("tojson", arguments,
                              {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = parameters.flag(0, false);
  style.sort_keys = parameters.flag(3, false);
  if (parameters.has(1) && !parameters.at(1).is_none()) {
    const auto* text = parameters.at(1).string();
    const auto width = std::max<int64_t>(0, text ? 0 : parameters.integer(1, 0));
    check_text_size(static_cast<size_t>(width));
    style.indent = text ? *text : std::string(static_cast<size_t>(width), ' ');
    style.item_separator = ",";
  }
  if (parameters.has(2) && !parameters.at(2).is_none()) {
    const auto separators = elements(parameters.at(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      throw Error("tojson's separators must be two strings");
    }
    style.item_separator = *separators[0].string();
    style.key_separator = *separators[1].string();
  }
  return json_text(input, style);
}

Value default_value(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("default", arguments, {"default_value", "boolean"});
  const bool is_missing = input.is_undefined() || (parameters.flag(1, false) && !truthy(input));
  return is_missing ? parameters.value(0, "") : input;
}

// A change of a text, which stays what it is.
Value changed(const Value& input, std::string text) {
  return input.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

Value trim(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("trim", arguments, {"chars"});
  return changed(input, std::string(strip(to_text(input), parameters.optional_string(0))));
}

Value upper_text(Frame&, const Value& input, const Arguments&) {
  return changed(input, upper(to_text(input)));
}
Value lower_text(Frame&, const Value& input, const Arguments&) {
  return changed(input, lower(to_text(input)));
}
Value capitalized(Frame&, const Value& input, const Arguments&) {
  return changed(input, capitalize(to_text(input)));
}
Value text_of(Frame&, const Value& input, const Arguments&) {
  return changed(input, to_text(input));
}
Value safe(Frame&, const Value& input, const Arguments&) { return Value::markup(to_text(input)); }
Value escaped(Frame&, const Value& input, const Arguments&) {
  return input.is_markup() ? input : Value::markup(html_escaped(to_text(input)));
}
Value force_escaped(Frame&, const Value& input, const Arguments&) {
  return Value::markup(html_escaped(to_text(input)));
}

// Words begin after white space and -([{<, which str.title does not know.
Value title_text(Frame&, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  const auto separates = [](std::string_view character) {
    return is_space(first_code_point(character).value) ||
           std::string_view("-([{<").find(character) != std::string_view::npos;
  };
  std::string out;
  std::string word;
  const auto end_word = [&] {
    if (word.empty()) return;
    const auto first = static_cast<size_t>(first_code_point(word).num_bytes);
    out += upper(word.substr(0, first)) + lower(word.substr(first));
    word.clear();
  };
  for (const auto character : code_points(text)) {
    if (separates(character)) {
      end_word();
      out += character;
    } else {
      word += character;
    }
  }
  end_word();
  return out;
}

Value replace(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"});
  const bool is_limited = parameters.has(2) && !parameters.at(2).is_none();
  return replaced(to_text(input), to_text(parameters.at(0)), to_text(parameters.at(1)),
                  is_limited ? parameters.integer(2, -1) : -1);
}

Value indent(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("indent", arguments, {"width", "first", "blank"});
  const bool is_text = parameters.has(0) && parameters.at(0).is_string();
  const auto width = std::max<int64_t>(0, is_text ? 0 : parameters.integer(0, 4));
  check_text_size(static_cast<size_t>(width));
  const std::string margin =
      is_text ? parameters.string(0) : std::string(static_cast<size_t>(width), ' ');
  require_defined(input);
  if (!input.is_string()) throw Error("indent needs a string, not a " + type_name(input));
  const std::string text = *input.string() + "\n";
  std::string out = parameters.flag(1, false) ? margin : "";
  bool is_first = true;
  for (const auto line : split_lines(text)) {
    if (!is_first) out += "\n";
    if (!is_first && (parameters.flag(2, false) || !line.empty())) out += margin;
    out += line;
    check_text_size(out.size());
    is_first = false;
  }
  return out;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  const bool has_prefix = text.size() > 2 && text[0] == '0' &&
                          ((base == 16 && (text[1] == 'x' || text[1] == 'X')) ||
                           (base == 8 && (text[1] == 'o' || text[1] == 'O')) ||
                           (base == 2 && (text[1] == 'b' || text[1] == 'B')));
  if (has_prefix) text.remove_prefix(2);
  int64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> truncated(double value) {
  if (!(std::abs(value) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

Value to_int(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("int", arguments, {"default", "base"});
  require_defined(input);
  const int64_t base = parameters.integer(1, 10);
  if (base < 2 || base > 36) throw Error("the base of int must be from 2 to 36");
  std::optional<int64_t> value = input.integer();
  if (input.is_float()) value = truncated(*input.number());
  if (const auto* text = input.string()) {
    value = parse_integer(*text, static_cast<int>(base));
    const auto real = value ? std::nullopt : parse_float(*text);
    if (real) value = truncated(*real);
  }
  return value ? Value(*value) : parameters.value(0, int64_t{0});
}

Value to_float(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("float", arguments, {"default"});
  require_defined(input);
  std::optional<double> value = input.number();
  if (const auto* text = input.string()) value = parse_float(*text);
  return value ? Value(*value) : parameters.value(0, 0.0);
}

Value absolute(Frame&, const Value& input, const Arguments&) {
  const auto number = input.number();
  require_defined(input);
  if (!number) throw Error("abs needs a number, not a " + type_name(input));
  return *number < 0 ? negative(input) : positive(input);
}

Value round_number(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("round", arguments, {"precision", "method"});
  const int64_t precision = parameters.integer(0, 0);
  const std::string method = parameters.has(1) ? parameters.string(1) : "common";
  const auto number = input.number();
  require_defined(input);
  if (!number || std::abs(precision) > 300) throw Error("round needs a number");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(*number * scale) / scale;
  if (method == "floor") return std::floor(*number * scale) / scale;
  if (method != "common") throw Error("round's method must be common, ceil or floor");
  if (const auto integer = input.integer(); integer && precision >= 0) return *integer;
  if (precision < 0) {
    const double rounded = std::nearbyint(*number * scale) / scale;
    return input.integer() ? Value(static_cast<int64_t>(rounded)) : Value(rounded);
  }
  // To the nearest decimal of the exact value, as the digits of "%.Nf" are.
  const std::string digits = percent_format("%." + std::to_string(precision) + "f", Value(*number));
  return *parse_float(digits);
}

Value format(Frame&, const Value& input, const Arguments& arguments) {
  if (arguments.named.empty()) {
    return percent_format(to_text(input), Value::tuple(arguments.positional));
  }
  if (!arguments.positional.empty()) throw Error("format takes values by place or by name");
  auto dict = std::make_shared<Dict>();
  for (const auto& [name, value] : arguments.named) dict->set(name, value);
  return percent_format(to_text(input), dict);
}

Value center(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"width"});
  return call_string_method("center", to_text(input), {{parameters.integer(0, 80)}, {}});
}

Value word_count(Frame&, const Value& input, const Arguments&) {
  const std::string text = to_text(input);
  int64_t count = 0;
  bool in_word = false;
  for (const auto character : code_points(text)) {
    const bool is_word = is_word_character(first_code_point(character).value);
    count += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return count;
}

Value attribute(Frame&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("attr", arguments, {"name"});
  require_defined(input);
  const auto method = attribute_of(input, parameters.string(0));
  // Keys are no attributes.
  if (input.is_dict() && !method.object()) {
    return Value::undefined("a dict has no attribute '" + parameters.string(0) + "'");
  }
  return method;
}

constexpr NamedFilter kFilters[] = {
    {"abs", absolute},
    {"attr", attribute},
    {"capitalize", capitalized},
    {"center", center},
    {"d", default_value},
    {"default", default_value},
    {"e", escaped},
    {"escape", escaped},
    {"float", to_float},
    {"forceescape", force_escaped},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"lower", lower_text},
    {"replace", replace},
    {"round", round_number},
    {"safe", safe},
    {"string", text_of},
    {"title", title_text},
    {"tojson", to_json},
    {"trim", trim},
    {"upper", upper_text},
    {"wordcount", word_count},
};

FilterFunction find_filter(std::string_view name) {
  for (const auto& filter : kFilters) {
    if (filter.name == name) return filter.function;
  }
  return find_sequence_filter(name);
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value apply_filter(std::string_view name, Frame& frame, const Value& input,
                   const Arguments& arguments) {
  const FilterFunction function = find_filter(name);
  if (!function) throw Error("there is no filter '" + std::string(name) + "'");
  frame.rendering().step(input.measure().weight / 64);
  return function(frame, input, arguments);
}

}  // namespace tessera::jinja
