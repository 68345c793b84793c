#include "proto/spec/bytes.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace tessera::spec {
namespace {

struct Unit {
  const char* name;
  double bytes;
};
constexpr double kKi = 1024;
constexpr std::array<Unit, 10> kParsedUnits{{{"", 1},
                                             {"B", 1},
                                             {"KB", 1e3},
                                             {"KiB", kKi},
                                             {"MB", 1e6},
                                             {"MiB", kKi* kKi},
                                             {"GB", 1e9},
                                             {"GiB", kKi* kKi* kKi},
                                             {"TB", 1e12},
                                             {"TiB", kKi* kKi* kKi* kKi}}};
constexpr int64_t kGpuOverheadBytes = int64_t{1} << 30;
constexpr int64_t kMinDeviceMemory = 1 << 20;
constexpr double kMaxBytes = kKi * kKi * kKi * kKi * kKi;

}  // namespace

std::string format_bytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  constexpr std::array<const char*, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::optional<int64_t> parse_bytes(const std::string& given) {
  const absl::string_view text = absl::StripAsciiWhitespace(given);
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const absl::string_view unit = absl::StripLeadingAsciiWhitespace(text.substr(end));
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, end), &number)) return std::nullopt;
  for (const Unit& known : kParsedUnits) {
    if (!absl::EqualsIgnoreCase(unit, known.name)) continue;
    const double bytes = number * known.bytes;
    if (bytes < 1 || bytes > kMaxBytes) return std::nullopt;
    return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

std::optional<int64_t> parse_device_memory(const std::string& text) {
  const std::optional<int64_t> bytes = parse_bytes(text);
  return bytes && *bytes >= kMinDeviceMemory ? bytes : std::nullopt;
}

int64_t tensor_bytes_of_gpu(int64_t memory_bytes) {
  return std::max<int64_t>(0, memory_bytes - kGpuOverheadBytes);
}

}  // namespace tessera::spec
