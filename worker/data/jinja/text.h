// Python's view of text: indexed by code point, with its classes of characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

bool is_space(char32_t code_point);  // str.isspace
bool is_alpha(char32_t code_point);
bool is_decimal(char32_t code_point);
bool is_upper(char32_t code_point);
bool is_lower(char32_t code_point);

size_t num_code_points(std::string_view text);
// Each as a view into the text.
std::vector<std::string_view> code_points(std::string_view text);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
// The first character in title case, the others in lower case.
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title

// Strips the characters of `characters`; white space where absent.
std::string_view strip_left(std::string_view text, std::optional<std::string_view> characters = {});
std::string_view strip_right(std::string_view text,
                             std::optional<std::string_view> characters = {});
std::string_view strip(std::string_view text, std::optional<std::string_view> characters = {});

// str.split and str.rsplit. No separator: at runs of white space. `limit` below 0: no limit.
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t limit);
std::vector<std::string_view> split_from_right(std::string_view text,
                                               std::optional<std::string_view> separator,
                                               int64_t limit);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);
// At most `limit` times; below 0: always.
std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t limit = -1);

std::string python_quoted(std::string_view text);  // repr of a str
std::string html_escaped(std::string_view text);

}  // namespace tessera::jinja
