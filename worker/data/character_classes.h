// What characters are, by the tables that Hugging Face's tokenizers looks at. Some of those are of
// Unicode 8 and 9: a character that came later has no properties there.
#pragma once

namespace tessera {

// \w of UTS 18: alphabetic, marks, decimal digits, connectors, joiners.
bool is_word_character(char32_t code_point);
// The property White_Space.
bool is_white_space(char32_t code_point);
// General category N.
bool is_number(char32_t code_point);
// M, as of Unicode 9.
bool is_mark(char32_t code_point);
// Mn, as of Unicode 8.
bool is_nonspacing_mark(char32_t code_point);
// C but for what is not assigned, as of Unicode 8.
bool is_control(char32_t code_point);
// P, as of Unicode 8, and what is neither letter nor digit in ASCII.
bool is_punctuation(char32_t code_point);
// The one character it becomes. (U+0130 becomes two, which is for the caller to see to.)
char32_t lowercase(char32_t code_point);

// Whether a character that is a mark, punctuation or a format control, or decomposes, came with
// Unicode 10 or later. (Others may be said to.)
bool is_newer_than_unicode_9(char32_t code_point);

}  // namespace tessera
