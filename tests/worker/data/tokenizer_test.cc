#include "worker/data/tokenizer.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/worker/data/fixtures.h"

namespace tessera {
namespace {

using nlohmann::json;

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text,
                            bool add_special_tokens = true) {
  std::vector<int32_t> ids;
  Encoder(tokenizer).encode(text, ids, add_special_tokens);
  return ids;
}

std::vector<std::string> tokenizers_of_fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixture(""))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class AgainstHuggingFace : public testing::TestWithParam<std::string> {};

// Ids, offsets and decoded text of every recorded string, twice with one encoder: its cache must
// not show.
TEST_P(AgainstHuggingFace, GivesTheSame) {
  const std::filesystem::path folder = fixture(GetParam());
  const Tokenizer tokenizer(folder);
  Encoder encoder(tokenizer);
  std::ifstream expected(folder / "expected.jsonl");
  int num_strings = 0;
  for (std::string line; std::getline(expected, line); ++num_strings) {
    const json row = json::parse(line);
    const auto text = row["text"].get<std::string>();
    const auto ids = row["ids"].get<std::vector<int32_t>>();
    for (int round = 0; round < 2; ++round) {
      std::vector<int32_t> plain;
      encoder.encode(text, plain);
      EXPECT_EQ(plain, ids) << row["text"];
      std::vector<int32_t> tracked;
      std::vector<Span> offsets;
      encoder.encode(text, tracked, offsets);
      EXPECT_EQ(tracked, ids) << row["text"];
      std::vector<uint32_t> flat;
      for (const Span& offset : offsets) flat.insert(flat.end(), {offset.begin, offset.end});
      EXPECT_EQ(flat, row["offsets"].get<std::vector<uint32_t>>()) << row["text"];
    }
    EXPECT_EQ(tokenizer.decode(ids), row.value("decoded", text)) << row["text"];
    EXPECT_EQ(tokenizer.decode(ids, true), row.value("decoded_skip_special", text)) << row["text"];
  }
  EXPECT_GE(num_strings, 100);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, AgainstHuggingFace,
                         testing::ValuesIn(tokenizers_of_fixtures()),
                         [](const auto& info) { return info.param; });

TEST(Tokenizer, KnowsItsSpecialTokens) {
  const Tokenizer tokenizer(fixture("qwen"));
  EXPECT_EQ(tokenizer.eos_token(), "<|im_end|>");
  EXPECT_EQ(tokenizer.pad_token(), "<|endoftext|>");
  const int32_t eos = tokenizer.id_of("<|im_end|>").value();
  EXPECT_EQ(tokenizer.token_of(eos), "<|im_end|>");
  EXPECT_EQ(tokenizer.vocab_size(), eos + 1);
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_of(-1), "");
  EXPECT_EQ(tokenizer.token_of(1 << 20), "");
}

TEST(Tokenizer, TakesTheEosTokenFromAnObject) {
  EXPECT_EQ(Tokenizer(fixture("cl100k")).eos_token(), "<|endoftext|>");
}

TEST(Tokenizer, PutsNoTokensAroundWhenNotAsked) {
  const Tokenizer tokenizer(fixture("llama3"));
  const auto begin = tokenizer.id_of("<|begin_of_text|>").value();
  EXPECT_EQ(encode(tokenizer, "").at(0), begin);
  EXPECT_TRUE(encode(tokenizer, "", false).empty());
}

TEST(Tokenizer, LongRunsOfSpaceEndInTime) {
  const Tokenizer tokenizer(fixture("qwen"));
  const std::string text(1 << 20, ' ');
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, text)), text);
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer(fixture("qwen"));
  for (const auto* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80"}) {
    EXPECT_THROW(encode(tokenizer, text), std::invalid_argument);
  }
}

TEST(Tokenizer, DecodesBrokenCharactersToReplacements) {
  const Tokenizer tokenizer(fixture("qwen"));
  auto ids = encode(tokenizer, "\xF0\x9F\x91\x8D");
  ids.pop_back();
  EXPECT_THAT(tokenizer.decode(ids), testing::EndsWith("\xEF\xBF\xBD"));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{-5, 1 << 30}), "");
}

// What a file may make slow: these end at once, or ctest ends them.
class LongText : public testing::TestWithParam<const char*> {};

TEST_P(LongText, EndsInTime) {
  const Tokenizer tokenizer(fixture(GetParam()));
  for (const std::string_view part : {"a", " ", "\u2581", "\u0301", "\u00e9", "\U0001f3fd", "ab"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += part;
    std::vector<int32_t> ids;
    std::vector<Span> offsets;
    Encoder(tokenizer).encode(text, ids, offsets);
    EXPECT_EQ(ids.size(), offsets.size());
    EXPECT_LE(ids.size(), text.size() + 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, LongText,
                         testing::Values("qwen", "llama2", "across_words", "t5", "bert",
                                         "end_of_word", "spm_unigram"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Tokenizer, MergesWhatDoublesSixteenTimes) {
  json vocab = {{"a", 0}};
  json merges = json::array();
  for (std::string token = "a"; token.size() < kMaxTokenBytes; token += token) {
    vocab[token + token] = vocab.size();
    merges.push_back({token, token});
  }
  TemporaryFolder folder;
  folder.write("tokenizer.json",
               json{{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}}.dump());
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(encode(tokenizer, std::string(16 * kMaxTokenBytes, 'a')),
            std::vector<int32_t>(16, static_cast<int32_t>(vocab.size()) - 1));
}

TEST(Tokenizer, LooksAtSpaceOnceThatAnAddedTokenTakes) {
  json file = read_json_fixture("splits/tokenizer.json");
  for (const bool right : {false, true}) {
    file["added_tokens"].push_back({{"id", 302 + right},
                                    {"content", right ? "\t" : "\n"},
                                    {"lstrip", !right},
                                    {"rstrip", right},
                                    {"normalized", false}});
  }
  TemporaryFolder folder;
  folder.write("tokenizer.json", file.dump());
  const Tokenizer tokenizer(folder.path());
  EXPECT_EQ(encode(tokenizer, std::string(1 << 20, '\n')).size(), 1 << 20);
  // Each takes the rest along, and each counts: so it is with Hugging Face's.
  EXPECT_EQ(encode(tokenizer, std::string(1 << 20, '\t')).size(), 1 << 20);
  EXPECT_EQ(encode(tokenizer, "\t\n\n").size(), 1);
}

TEST(Tokenizer, TakesSpecialTokensForTextWhereAsked) {
  const Tokenizer tokenizer(fixture("o200k"));
  const auto ids = encode(tokenizer, "<|endoftext|>");
  EXPECT_GT(ids.size(), 1);
  EXPECT_EQ(tokenizer.decode(ids, true), "<|endoftext|>");
}

}  // namespace
}  // namespace tessera
