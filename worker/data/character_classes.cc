#include "worker/data/character_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace tessera {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Marks, punctuation, format controls and what decomposes, with all between them that no earlier
// version has.
constexpr Range kSinceUnicode9[] = {
    {0x08D4, 0x08E2},   {0x1DFB, 0x1DFB},   {0x2E43, 0x2E44},   {0xA8C5, 0xA8C5},
    {0x1123E, 0x1123E}, {0x11435, 0x1144F}, {0x1145B, 0x1145B}, {0x1145D, 0x1145D},
    {0x11660, 0x1166C}, {0x11C2F, 0x11C36}, {0x11C38, 0x11C45}, {0x11C70, 0x11C71},
    {0x11C92, 0x11CA7}, {0x11CA9, 0x11CB6}, {0x1E000, 0x1E006}, {0x1E008, 0x1E018},
    {0x1E01B, 0x1E021}, {0x1E023, 0x1E024}, {0x1E026, 0x1E02A}, {0x1E944, 0x1E94A},
    {0x1E95E, 0x1E95F}, {0x1F23B, 0x1F23B}};
constexpr Range kSinceUnicode10[] = {
    {0x061D, 0x061D},   {0x07FD, 0x07FD},   {0x0890, 0x089F},   {0x08CA, 0x08D3},
    {0x09FD, 0x09FE},   {0x0A76, 0x0A76},   {0x0AFA, 0x0AFF},   {0x0B55, 0x0B55},
    {0x0C04, 0x0C04},   {0x0C3C, 0x0C3C},   {0x0C77, 0x0C77},   {0x0C84, 0x0C84},
    {0x0CF3, 0x0D00},   {0x0D3B, 0x0D3C},   {0x0D81, 0x0D81},   {0x0EBA, 0x0EBA},
    {0x0ECE, 0x0ECE},   {0x1715, 0x1715},   {0x180F, 0x180F},   {0x1ABF, 0x1ACE},
    {0x1B7D, 0x1B7E},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},   {0x2E45, 0x2E5D},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},
    {0xAB69, 0xAB69},   {0x10781, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10F89},
    {0x11070, 0x11074}, {0x110C2, 0x110CD}, {0x11145, 0x11146}, {0x111CE, 0x111CF},
    {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x1145A, 0x1145A}, {0x1145E, 0x1145E},
    {0x116B9, 0x116B9}, {0x1182C, 0x1183B}, {0x11930, 0x11AA2}, {0x11B00, 0x11B09},
    {0x11D31, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x13430, 0x13455}, {0x16E97, 0x16E9A},
    {0x16F4F, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE2, 0x16FF1}, {0x1CF00, 0x1CF46},
    {0x1E030, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

template <typename Ranges>
bool contains(const Ranges& ranges, char32_t code_point) {
  const auto after =
      std::upper_bound(std::begin(ranges), std::end(ranges), code_point,
                       [](char32_t c, const Range& range) { return c < range.first; });
  return after != std::begin(ranges) && code_point <= std::prev(after)->last;
}

bool is_newer_than_unicode_8(char32_t code_point) {
  return contains(kSinceUnicode9, code_point) || contains(kSinceUnicode10, code_point);
}

// Whether the code point's general category lies between two in utf8proc's order.
bool category_in(char32_t code_point, utf8proc_category_t first, utf8proc_category_t last) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category >= first && category <= last;
}

}  // namespace

bool is_word_character(char32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // Other_Alphabetic: circled and squared letters
      return (code_point >= 0x24B6 && code_point <= 0x24E9) ||
             (code_point >= 0x1F130 && code_point <= 0x1F149) ||
             (code_point >= 0x1F150 && code_point <= 0x1F169) ||
             (code_point >= 0x1F170 && code_point <= 0x1F189);
    default:
      return code_point == 0x200C || code_point == 0x200D;
  }
}

bool is_white_space(char32_t code_point) {
  switch (code_point) {
    case 0x20:
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return (code_point >= 0x09 && code_point <= 0x0D) ||
             (code_point >= 0x2000 && code_point <= 0x200A);
  }
}

bool is_newer_than_unicode_9(char32_t code_point) { return contains(kSinceUnicode10, code_point); }

bool is_number(char32_t code_point) {
  return category_in(code_point, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

// Below, the numbers are characters whose category has changed since.

bool is_mark(char32_t code_point) {
  if (code_point == 0x1CF2 || code_point == 0x1CF3) return true;
  return category_in(code_point, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME) &&
         code_point != 0x111C9 && !is_newer_than_unicode_9(code_point);
}

bool is_nonspacing_mark(char32_t code_point) {
  if (code_point == 0x1734) return true;
  return category_in(code_point, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN) &&
         code_point != 0x1885 && code_point != 0x1886 && code_point != 0xA9BD &&
         code_point != 0x111C9 && !is_newer_than_unicode_8(code_point);
}

bool is_control(char32_t code_point) {
  return category_in(code_point, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO) &&
         !is_newer_than_unicode_8(code_point);
}

bool is_punctuation(char32_t code_point) {
  if (code_point < 0x80) return std::ispunct(static_cast<unsigned char>(code_point)) != 0;
  if (code_point == 0x166D || code_point == 0x111C9) return true;
  return category_in(code_point, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO) &&
         !is_newer_than_unicode_8(code_point);
}

char32_t lowercase(char32_t code_point) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

}  // namespace tessera
