#include "client/cli/format.h"

#include <algorithm>
#include <cmath>

#include <utf8proc.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::cli {
namespace {

// Columns that a terminal takes for valid UTF-8 text.
size_t width_of(const std::string& text) {
  size_t width = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (utf8proc_ssize_t at = 0; at < static_cast<utf8proc_ssize_t>(text.size());) {
    utf8proc_int32_t character = 0;
    const auto length =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size()) - at, &character);
    width += length > 0 ? static_cast<size_t>(utf8proc_charwidth(character)) : 1;
    at += std::max<utf8proc_ssize_t>(length, 1);
  }
  return width;
}

std::string pad(const std::string& text, size_t width, bool right) {
  const std::string blanks(width - width_of(text), ' ');
  return right ? blanks + text : text + blanks;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e12)));
  const int64_t minutes = total / 60;
  const int64_t hours = minutes / 60;
  if (minutes == 0) return absl::StrFormat("%ds", total);
  if (hours == 0) return absl::StrFormat("%dm %02ds", minutes, total % 60);
  if (hours < 48) return absl::StrFormat("%dh %02dm", hours, minutes % 60);
  return absl::StrFormat("%dd %02dh", hours / 24, hours % 24);
}

std::string format_count(double count) {
  if (count < 999.5) return absl::StrFormat("%.0f", count);
  if (count < 999950) return absl::StrFormat("%.1fk", count / 1e3);
  return absl::StrFormat("%.1fM", count / 1e6);
}

std::vector<std::string> format_table(std::vector<std::vector<std::string>> rows) {
  const size_t columns = rows.front().size();
  std::vector<bool> right(columns);
  std::vector<size_t> widths(columns);
  for (size_t c = 0; c < columns; ++c) {
    std::string& title = rows.front()[c];
    right[c] = title.starts_with('>');
    if (right[c]) title.erase(0, 1);
    for (const auto& row : rows) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      absl::StrAppend(&line, c > 0 ? "  " : "", pad(row[c], widths[c], right[c]));
    }
    absl::StripTrailingAsciiWhitespace(&line);
    lines.push_back(line);
  }
  return lines;
}

std::string clip(const std::string& text, size_t width) {
  std::string out;
  size_t columns = 0;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t character = 0;
    const auto length =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    const size_t step = static_cast<size_t>(std::max<utf8proc_ssize_t>(length, 1));
    const bool control = length <= 0 || character < 0x20 || (character >= 0x7f && character < 0xa0);
    const size_t taken = control ? 1 : static_cast<size_t>(utf8proc_charwidth(character));
    if (columns + taken > width) break;
    out += control ? std::string("?") : text.substr(at, step);
    columns += taken;
    at += step;
  }
  return out;
}

}  // namespace tessera::cli
