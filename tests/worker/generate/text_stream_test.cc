#include "worker/generate/text_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/worker/data/fixtures.h"

namespace tessera {
namespace {

std::vector<int32_t> tokens_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  Encoder(tokenizer).encode(text, ids, /*add_special_tokens=*/false);
  return ids;
}

// What is told after each token, and at the end.
std::vector<std::string> told(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  TextStream stream(tokenizer);
  std::vector<std::string> parts;
  for (size_t n = 1; n <= ids.size(); ++n) parts.push_back(stream.next(std::span(ids).first(n)));
  parts.push_back(stream.rest(ids));
  return parts;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

class TextStreamTest : public ::testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer_{fixture(GetParam())};
};

TEST_P(TextStreamTest, TellsInPartsWhatIsDecodedInOne) {
  for (const char* text :
       {"Hello, world! It is 12:30.", "Zwölf  Boxkämpfer\n\n\tjagen", "日本語の文",
        "👩‍👩‍👧 and 🇩🇪, twice: 👩‍👩‍👧", ""}) {
    const auto ids = tokens_of(tokenizer_, text);
    EXPECT_EQ(joined(told(tokenizer_, ids)), tokenizer_.decode(ids, /*skip_special_tokens=*/true));
  }
}

// Bytes of a character that other tokens hold the rest of are not told before these come.
TEST_P(TextStreamTest, TellsWholeCharacters) {
  for (const std::string& part : told(tokenizer_, tokens_of(tokenizer_, "𝕿𝖊𝖘𝖘𝖊𝖗𝖆 ༄ ꙮ")))
    EXPECT_EQ(part.find("\xEF\xBF\xBD"), std::string::npos) << part;
}

TEST_P(TextStreamTest, TellsAtTheEndWhatNeverBecameACharacter) {
  const auto ids = tokens_of(tokenizer_, "x𝕿");
  ASSERT_GT(ids.size(), 2U);
  const std::vector<int32_t> cut(ids.begin(), ids.end() - 1);
  EXPECT_EQ(joined(told(tokenizer_, cut)), tokenizer_.decode(cut, /*skip_special_tokens=*/true));
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, TextStreamTest, ::testing::Values("gpt2", "qwen", "llama3"));

}  // namespace
}  // namespace tessera
