// What the rules are made of: patterns, numbers, code blocks.
#include <gtest/gtest.h>

#include "worker/rewards/code_block.h"
#include "worker/rewards/decimal.h"
#include "worker/rewards/pattern.h"

namespace tessera {
namespace {

TEST(Pattern, TheLastMatchIsThatOfASearchFromMatchToMatch) {
  const auto last = [](const char* pattern, std::string_view text) {
    const Pattern::LastGroup group = Pattern(pattern).last_group(text);
    return group.search == Pattern::Search::kFound ? std::string(group.text) : "none";
  };
  EXPECT_EQ(last(R"((\d+))", "12 and 345"), "345") << "not its last digit";
  EXPECT_EQ(last(R"((aa))", "aaaaa"), "aa");
  EXPECT_EQ(last(R"((x*))", "axxb"), "") << "the empty one at the end";
  EXPECT_EQ(last(R"((x))", "abc"), "none");
  EXPECT_EQ(last(R"((a)|b)", "ab"), "none") << "the last match is b";
  EXPECT_EQ(last(R"((é))", "aéé"), "é");
}

TEST(Pattern, ASearchThatTakesTooLongIsGivenUp) {
  const std::string text = std::string(5000, 'a') + "b";
  EXPECT_EQ(Pattern("((?:a+)+)$").last_group(text).search, Pattern::Search::kGaveUp);
}

TEST(Pattern, MayNotReadBytes) { EXPECT_THROW(Pattern(R"(\C)"), std::invalid_argument); }

TEST(Decimal, HasOneFormForEachValue) {
  EXPECT_EQ(parse_decimal("1,234,567.890"), parse_decimal("+1234567.89"));
  EXPECT_EQ(parse_decimal("12e2"), parse_decimal("1200"));
  EXPECT_EQ(parse_decimal(".5"), parse_decimal("5e-1"));
  EXPECT_EQ(parse_decimal("7."), parse_decimal("007"));
  EXPECT_EQ(parse_decimal("-0.00"), parse_decimal("0"));
  EXPECT_NE(parse_decimal("-1"), parse_decimal("1"));
  EXPECT_NE(parse_decimal("0.1"), parse_decimal("0.10000000000000000001"));
}

TEST(Decimal, IsAllOfTheText) {
  for (const char* text : {"", "-", ".", "1,00", "1,0000", ",100", "1234,567", "1 000", "1.2.3",
                           "1e", "1e99999999999", "0x10", "nan", "5%", "1,000,"}) {
    EXPECT_FALSE(parse_decimal(text)) << text;
  }
}

TEST(CodeBlock, IsTheLastFencedOne) {
  EXPECT_EQ(last_code_block("a\n```py\nx\n```\nb\n~~~\ny\nz\n~~~"), "y\nz\n");
  EXPECT_EQ(last_code_block("````\n```\nx\n```\n````\n"), "```\nx\n```\n") << "a longer fence";
  EXPECT_EQ(last_code_block("```\nx"), "x") << "open to the end";
  EXPECT_EQ(last_code_block("```\nx\n``` y\n```"), "x\n``` y\n") << "a closing fence says nothing";
  EXPECT_EQ(last_code_block("    ```\nx\n    ```"), std::nullopt);
  EXPECT_EQ(last_code_block("a ```x``` b\n```x```\n"), std::nullopt);
  EXPECT_EQ(last_code_block(""), std::nullopt);
}

}  // namespace
}  // namespace tessera
