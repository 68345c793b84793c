#include "worker/rewards/decimal.h"

#include <charconv>

namespace tessera {
namespace {

// Digits of an exponent: sums of it and of lengths stay in range.
constexpr size_t kMaxExponentDigits = 9;
constexpr size_t kGroup = 3;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes leading digits off the text.
std::string_view take_digits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

bool take_sign(std::string_view& text) {
  if (text.empty() || (text[0] != '-' && text[0] != '+')) return false;
  const bool negative = text[0] == '-';
  text.remove_prefix(1);
  return negative;
}

// False: commas stand where none can.
bool take_whole(std::string_view& text, std::string& digits) {
  const std::string_view first = take_digits(text);
  digits = first;
  if (first.empty() || first.size() > kGroup) return true;
  while (!text.empty() && text[0] == ',') {
    text.remove_prefix(1);
    const std::string_view group = take_digits(text);
    if (group.size() != kGroup) return false;
    digits += group;
  }
  return true;
}

// False: there is no number after the e.
bool take_exponent(std::string_view& text, int64_t& exponent) {
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) return true;
  text.remove_prefix(1);
  const bool negative = take_sign(text);
  const std::string_view digits = take_digits(text);
  if (digits.empty() || digits.size() > kMaxExponentDigits) return false;
  std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
  if (negative) exponent = -exponent;
  return true;
}

}  // namespace

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal number;
  number.negative = take_sign(text);
  if (!take_whole(text, number.digits)) return std::nullopt;
  std::string_view fraction;
  if (!text.empty() && text[0] == '.') {
    text.remove_prefix(1);
    fraction = take_digits(text);
  }
  number.digits += fraction;
  if (number.digits.empty() || !take_exponent(text, number.exponent) || !text.empty())
    return std::nullopt;
  number.exponent -= static_cast<int64_t>(fraction.size());
  const size_t last = number.digits.find_last_not_of('0');
  if (last == std::string::npos) return Decimal{};
  number.exponent += static_cast<int64_t>(number.digits.size() - last - 1);
  number.digits.resize(last + 1);
  number.digits.erase(0, number.digits.find_first_not_of('0'));
  return number;
}

}  // namespace tessera
