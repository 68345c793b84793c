// UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

struct CodePoint {
  char32_t value;
  int num_bytes;
};

// The code point that starts at text[0]. Requires valid UTF-8, not empty.
CodePoint first_code_point(std::string_view text);
// The code point that ends the text. Requires valid UTF-8, not empty.
CodePoint last_code_point(std::string_view text);
void append_utf8(char32_t code_point, std::string& text);

bool is_valid_utf8(std::string_view text);
// Invalid sequences become U+FFFD, one for each maximal part of a character, as in Rust and Python.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace tessera
