// Fenced code blocks of Markdown, as CommonMark has them.
#pragma once

#include <optional>
#include <string_view>

namespace tessera {

// What the last fenced block holds, without the lines of its fences: three or more backticks or
// tildes that begin a line, after at most three spaces. A block that is not closed goes on to the
// end of the text. Empty: there is none.
std::optional<std::string_view> last_code_block(std::string_view text);

}  // namespace tessera
