#include "worker/agent/utf8.h"

#include <gtest/gtest.h>

namespace tessera::agent {
namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

TEST(Utf8, KeepsWhatIsWellFormed) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\x9F\xBF\xF4\x8F\xBF\xBF";
  EXPECT_EQ(to_valid_utf8(text), text);
  EXPECT_EQ(to_valid_utf8(std::string("\0", 1)), std::string("\0", 1));
}

TEST(Utf8, ReplacesEachByteThatIsNot) {
  EXPECT_EQ(to_valid_utf8("a\xFF"
                          "b"),
            "a" + kReplacement + "b");
  EXPECT_EQ(to_valid_utf8("\xC0\xAF"), kReplacement + kReplacement);             // overlong
  EXPECT_EQ(to_valid_utf8("\xE0\x80\x80").size(), 3 * kReplacement.size());      // overlong
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80").size(), 3 * kReplacement.size());      // surrogate
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80").size(), 4 * kReplacement.size());  // past U+10FFFF
  EXPECT_EQ(to_valid_utf8("\xE2\x82"), kReplacement + kReplacement);             // cut short
}

}  // namespace
}  // namespace tessera::agent
