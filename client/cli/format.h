// Numbers and tables for people.
#pragma once

#include <string>
#include <vector>

#include "proto/spec/bytes.h"

namespace tessera::cli {

using spec::format_bytes;

// "42s", "3m 05s", "2h 07m", "5d 03h".
std::string format_duration(double seconds);

// "950", "1.2k", "34.5k", "1.2M".
std::string format_count(double count);

// Rows as lines with aligned columns; columns whose first row begins with '>' are aligned right
// (the mark is not printed). Requires: all rows are as long as the first.
std::vector<std::string> format_table(std::vector<std::vector<std::string>> rows);

// The first `width` columns of the text; control characters and broken UTF-8 become "?", so that
// what a job writes cannot drive the terminal.
std::string clip(const std::string& text, size_t width);

}  // namespace tessera::cli
