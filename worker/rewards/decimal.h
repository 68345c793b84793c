// Numbers as people write them, compared by value and not rounded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// digits * 10^exponent. Equal numbers are equal: digits neither begin nor end with 0.
struct Decimal {
  bool negative = false;
  std::string digits;  // empty: zero
  int64_t exponent = 0;
  bool operator==(const Decimal&) const = default;
};

// All of the text is a number: a sign, digits, of which those before the point may stand in groups
// of three with commas between, and an exponent, as in -1,000.50 or 2e-3. Else empty.
std::optional<Decimal> parse_decimal(std::string_view text);

}  // namespace tessera
