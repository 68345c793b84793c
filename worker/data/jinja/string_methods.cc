#include "worker/data/jinja/string_methods.h"

#include <algorithm>

#include "worker/data/jinja/format.h"
#include "worker/data/jinja/frame.h"
#include "worker/data/jinja/operators.h"
#include "worker/data/jinja/parameters.h"
#include "worker/data/jinja/text.h"
#include "worker/data/utf8.h"

namespace tessera::jinja {
namespace {

Value to_list(const std::vector<std::string_view>& parts) {
  return Value::list({parts.begin(), parts.end()});
}

// text[start:end] of the optional arguments 1 and 2, and where it begins, in characters.
struct Window {
  std::string text;
  int64_t begin;
};
Window window(const std::string& text, const Parameters& parameters) {
  SliceBounds bounds;
  if (parameters.has(1) && !parameters.at(1).is_none()) bounds.start = parameters.integer(1, 0);
  if (parameters.has(2) && !parameters.at(2).is_none()) bounds.stop = parameters.integer(2, 0);
  const int64_t size = length(text);
  int64_t begin = bounds.start.value_or(0);
  if (begin < 0) begin = std::max<int64_t>(0, begin + size);
  return {*slice(text, bounds).string(), begin};
}

Value starts_or_ends(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"affix", "start", "end"});
  const std::string part = window(text, parameters).text;
  const auto matches = [&](const Value& affix) {
    const auto* string = affix.string();
    require_defined(affix);
    if (!string) throw Error(std::string(name) + "() needs a string or a tuple of strings");
    return name == "startswith" ? part.starts_with(*string) : part.ends_with(*string);
  };
  const auto* tuple = parameters.at(0).sequence();
  if (!tuple || tuple->kind != SequenceKind::kTuple) return matches(parameters.at(0));
  return std::any_of(tuple->items.begin(), tuple->items.end(), matches);
}

Value find(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"sub", "start", "end"});
  const Window part = window(text, parameters);
  const bool from_right = name == "rfind" || name == "rindex";
  const auto& wanted = parameters.string(0);
  const size_t at = from_right ? part.text.rfind(wanted) : part.text.find(wanted);
  if (at != std::string::npos) {
    return part.begin + static_cast<int64_t>(num_code_points(part.text.substr(0, at)));
  }
  if (name == "index" || name == "rindex") throw Error("index() does not find the text");
  return int64_t{-1};
}

Value count(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"sub", "start", "end"});
  const std::string part = window(text, parameters).text;
  const auto& wanted = parameters.string(0);
  if (wanted.empty()) return static_cast<int64_t>(num_code_points(part)) + 1;
  return static_cast<int64_t>(split(part, wanted, -1).size()) - 1;
}

Value strip(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"chars"});
  const auto characters = parameters.optional_string(0);
  if (name == "lstrip") return strip_left(text, characters);
  if (name == "rstrip") return strip_right(text, characters);
  return jinja::strip(text, characters);
}

Value split(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"sep", "maxsplit"});
  const auto separator = parameters.optional_string(0);
  const int64_t limit = parameters.integer(1, -1);
  return to_list(name == "split" ? jinja::split(text, separator, limit)
                                 : split_from_right(text, separator, limit));
}

Value partition(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"sep"});
  const auto& separator = parameters.string(0);
  if (separator.empty()) throw Error("partition() has an empty separator");
  const bool from_right = name == "rpartition";
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) {
    if (from_right) return Value::tuple({"", "", text});
    return Value::tuple({text, "", ""});
  }
  return Value::tuple({text.substr(0, at), separator, text.substr(at + separator.size())});
}

Value replace(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"old", "new", "count"});
  return replaced(text, parameters.string(0), parameters.string(1), parameters.integer(2, -1));
}

Value remove_affix(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"affix"});
  const auto& affix = parameters.string(0);
  if (name == "removeprefix") {
    return text.starts_with(affix) ? text.substr(affix.size()) : text;
  }
  return text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text;
}

Value pad(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"width", "fillchar"});
  parameters.at(0);
  const std::string fill = parameters.has(1) ? parameters.string(1) : " ";
  const int64_t missing = parameters.integer(0, 0) - length(text);
  if (missing <= 0) return text;
  check_text_size(static_cast<size_t>(missing) * fill.size());
  const auto filled = [&](int64_t times) {
    return *calculate(Operator::kMultiply, fill, times).string();
  };
  if (name == "ljust") return text + filled(missing);
  if (name == "rjust") return filled(missing) + text;
  // Where it is odd, Python puts more on the left only if the width is odd too.
  const int64_t left = missing / 2 + (missing & parameters.integer(0, 0) & 1);
  return filled(left) + text + filled(missing - left);
}

Value zfill(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"width"});
  parameters.at(0);
  const int64_t missing = parameters.integer(0, 0) - length(text);
  if (missing <= 0) return text;
  check_text_size(static_cast<size_t>(missing));
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  return text.substr(0, has_sign) + std::string(static_cast<size_t>(missing), '0') +
         text.substr(has_sign);
}

Value join(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"iterable"});
  std::string out;
  bool is_first = true;
  for (const auto& item : elements(parameters.at(0))) {
    require_defined(item);
    if (!item.is_string()) throw Error("join() needs strings, not a " + type_name(item));
    check_text_size(out.size() + text.size() + item.string()->size());
    if (!is_first) out += text;
    out += *item.string();
    is_first = false;
  }
  return out;
}

Value lines(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters parameters(name, arguments, {"keepends"});
  return to_list(split_lines(text, parameters.flag(0, false)));
}

// isupper and islower: some letter with a case, and none of the other case.
bool has_only_case(const std::string& text, bool wants_upper) {
  bool has_cased = false;
  for (const auto character : code_points(text)) {
    const char32_t c = first_code_point(character).value;
    if (wants_upper ? is_lower(c) : is_upper(c)) return false;
    has_cased |= wants_upper ? is_upper(c) : is_lower(c);
  }
  return has_cased;
}

Value is_of_class(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters none(name, arguments, {});
  if (name == "isupper") return has_only_case(text, true);
  if (name == "islower") return has_only_case(text, false);
  if (text.empty()) return name == "isascii";
  const auto characters = code_points(text);
  return std::all_of(characters.begin(), characters.end(), [&](std::string_view character) {
    const char32_t c = first_code_point(character).value;
    if (name == "isspace") return is_space(c);
    if (name == "isascii") return c < 0x80;
    if (name == "isalpha") return is_alpha(c);
    if (name == "isalnum") return is_alpha(c) || is_decimal(c);
    return is_decimal(c);
  });
}

Value change_case(std::string_view name, const std::string& text, const Arguments& arguments) {
  const Parameters none(name, arguments, {});
  if (name == "upper") return upper(text);
  if (name == "lower") return lower(text);
  if (name == "title") return title(text);
  return capitalize(text);
}

using Method = Value (*)(std::string_view, const std::string&, const Arguments&);
constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", change_case},
    {"center", pad},
    {"count", count},
    {"endswith", starts_or_ends},
    {"find", find},
    {"index", find},
    {"isalnum", is_of_class},
    {"isalpha", is_of_class},
    {"isascii", is_of_class},
    {"isdecimal", is_of_class},
    {"isdigit", is_of_class},
    {"islower", is_of_class},
    {"isnumeric", is_of_class},
    {"isspace", is_of_class},
    {"isupper", is_of_class},
    {"join", join},
    {"ljust", pad},
    {"lower", change_case},
    {"lstrip", strip},
    {"partition", partition},
    {"removeprefix", remove_affix},
    {"removesuffix", remove_affix},
    {"replace", replace},
    {"rfind", find},
    {"rindex", find},
    {"rjust", pad},
    {"rpartition", partition},
    {"rsplit", split},
    {"rstrip", strip},
    {"split", split},
    {"splitlines", lines},
    {"startswith", starts_or_ends},
    {"strip", strip},
    {"title", change_case},
    {"upper", change_case},
    {"zfill", zfill},
};

Method find_method(std::string_view name) {
  for (const auto& [method, body] : kMethods) {
    if (method == name) return body;
  }
  return nullptr;
}

}  // namespace

bool is_string_method(std::string_view name) { return name == "format" || find_method(name); }

Value call_string_method(std::string_view name, const std::string& text,
                         const Arguments& arguments) {
  if (name == "format") return brace_format(text, arguments);
  return find_method(name)(name, text, arguments);
}

}  // namespace tessera::jinja
