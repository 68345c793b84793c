#include "worker/data/regex.h"

#include <gmock/gmock.h>

#include <stdexcept>
#include <string>

#include "worker/data/onig_syntax.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Optional;

std::optional<Span> find(std::string_view pattern, std::string_view text, size_t from = 0) {
  Regex::Matcher matcher;
  return Regex(pattern).find(text, from, matcher);
}

TEST(Regex, WhiteSpaceIsUnicodes) {
  EXPECT_TRUE(find(R"(^\s$)", "\xC2\x85"));
  EXPECT_TRUE(find(R"(^\s$)", "\xE3\x80\x80"));
  EXPECT_FALSE(find(R"(\s)", "\xE1\xA0\x8E"));  // U+180E, which PCRE2 counts
  EXPECT_TRUE(find(R"([^\S\n])", "\n\t"));
}

TEST(Regex, HIsAHexadecimalDigit) {
  EXPECT_THAT(find(R"(\h+)", " beef"), Optional(Span{1, 5}));
  EXPECT_THAT(find(R"([\h]+)", "xx0F"), Optional(Span{2, 4}));
}

TEST(Regex, RepeatedIntervalsAreNotPossessive) {
  EXPECT_THAT(find(R"(a{1,2}+a)", "aaaa"), Optional(Span{0, 4}));
  EXPECT_FALSE(find(R"(a++a)", "aaaa"));
}

TEST(Regex, BracesThatAreNoIntervalAreLiteral) {
  EXPECT_THAT(find(R"(a{b})", "xa{b}"), Optional(Span{1, 5}));
  EXPECT_THAT(find(R"(ba{,2}c)", "baac"), Optional(Span{0, 4}));
}

TEST(Regex, HanIsTheScript) {
  EXPECT_TRUE(find(R"(\p{Han})", "\xE6\xBC\xA2"));
  EXPECT_FALSE(find(R"(\p{Han})", "\xE3\x80\x81"));  // the ideographic comma
  EXPECT_TRUE(find(R"(\p{^Han})", "\xE3\x80\x81"));
}

TEST(Regex, DotMatchesNewlineWithM) {
  EXPECT_TRUE(find("(?m:a.b)", "a\nb"));
  EXPECT_FALSE(find("a.b", "a\nb"));
}

TEST(Regex, LiteralsAreNotPatterns) {
  Regex::Matcher matcher;
  EXPECT_THAT(Regex("a.b", Regex::Syntax::kLiteral).find("axb a.b", 0, matcher),
              Optional(Span{4, 7}));
}

TEST(Regex, RefusesWhatHasNoCounterpart) {
  for (const auto* pattern : {"[a[b]]", "[a&&b]", R"(\k<x>)", R"(\X)", "a\\", "[[:foo:]]", "(?~a)",
                              R"([\W])", "a)", "[a", R"(\p)", R"(\u12)"}) {
    EXPECT_THROW(pcre_from_onig(pattern), std::invalid_argument) << pattern;
  }
  EXPECT_THROW(Regex("(a"), std::invalid_argument);
  EXPECT_THROW(Regex(std::string(kMaxPatternBytes + 1, 'a')), std::invalid_argument);
  EXPECT_THROW(Regex(std::string(200, '(') + std::string(200, ')')), std::invalid_argument);
}

TEST(Regex, CatastrophicPatternsAreCutOff) {
  EXPECT_THROW(find("(a+a+)+[bd]", std::string(64, 'a') + "c"), std::runtime_error);
}

}  // namespace
}  // namespace tessera
