#include "worker/data/tokenizer.h"

#include <gmock/gmock.h>

#include <functional>

#include "tests/worker/data/fixtures.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text,
                            bool add_special_tokens = true) {
  std::vector<int32_t> ids;
  Encoder(tokenizer).encode(text, ids, add_special_tokens);
  return ids;
}

class AgainstHuggingFace : public testing::TestWithParam<const char*> {};

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
                         testing::Values("qwen", "gpt2", "llama3", "splits"));

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
  EXPECT_EQ(Tokenizer(fixture("gpt2")).eos_token(), "<|endoftext|>");
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

// A tokenizer.json that works, changed by `change`, and what the error says.
struct Broken {
  const char* name;
  std::function<void(json&)> change;
  const char* message;
};

class BrokenTokenizer : public testing::TestWithParam<Broken> {};

TEST_P(BrokenTokenizer, IsRefusedByName) {
  json file = read_json_fixture("splits/tokenizer.json");
  GetParam().change(file);
  TemporaryFolder folder;
  folder.write("tokenizer.json", file.dump());
  try {
    const Tokenizer tokenizer(folder.path());
    FAIL() << "was accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), kTokenizerField);
    EXPECT_THAT(error.what(), HasSubstr((folder.path() / "tokenizer.json").string()));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}

json split_by(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

INSTANTIATE_TEST_SUITE_P(
    Files, BrokenTokenizer,
    testing::Values(
        Broken{"NotAnObject", [](json& f) { f = json::array(); }, "is not an object"},
        Broken{"NoModel", [](json& f) { f.erase("model"); }, "has no \"model\""},
        Broken{"OtherModel", [](json& f) { f["model"]["type"] = "Unigram"; },
               "model is of type Unigram"},
        Broken{"Dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, "model.dropout is set"},
        Broken{"ByteFallback", [](json& f) { f["model"]["byte_fallback"] = true; },
               "byte_fallback is set"},
        Broken{"NegativeId", [](json& f) { f["model"]["vocab"]["a"] = -1; },
               "the id -1, out of range"},
        Broken{"HugeId", [](json& f) { f["model"]["vocab"]["a"] = int64_t{1} << 40; },
               "out of range"},
        Broken{"SameId", [](json& f) { f["model"]["vocab"]["a"] = f["model"]["vocab"]["b"]; },
               "of another token"},
        Broken{"EmptyVocabulary", [](json& f) { f["model"]["vocab"] = json::object(); },
               "vocab is empty"},
        Broken{"TextVocabulary", [](json& f) { f["model"]["vocab"] = "a"; },
               "vocab is not an object"},
        Broken{"LonelyMerge", [](json& f) { f["model"]["merges"][0] = "a"; }, "is not a pair"},
        Broken{"ThreeMerge", [](json& f) { f["model"]["merges"][1] = {"a", "b", "c"}; }, "at 1"},
        Broken{"UnknownMerge", [](json& f) { f["model"]["merges"][0] = {"a", "nowhere"}; },
               "\"nowhere\", which is not in the vocabulary"},
        Broken{"OtherNormalizer", [](json& f) { f["normalizer"] = {{"type", "Lowercase"}}; },
               "normalizer is of type Lowercase"},
        Broken{"OtherPreTokenizer", [](json& f) { f["pre_tokenizer"] = {{"type", "Metaspace"}}; },
               "pre_tokenizer is of type Metaspace"},
        Broken{"NoByteLevel", [](json& f) { f["pre_tokenizer"] = split_by("a"); },
               "does not end in ByteLevel"},
        Broken{"BadPattern",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][1] = split_by("(a"); },
               "pretokenizers[1].pattern cannot be used"},
        Broken{"OddPattern",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][1] = split_by("\\k<a>"); },
               "\\k at offset 0 is not supported"},
        Broken{"BadBehavior",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Sideways"; },
               "no behavior of Split"},
        Broken{"OtherPostProcessor",
               [](json& f) { f["post_processor"] = {{"type", "BertProcessing"}}; },
               "post_processor is of type BertProcessing"},
        Broken{"OtherDecoder", [](json& f) { f["decoder"] = {{"type", "WordPiece"}}; },
               "decoder is of type WordPiece"},
        Broken{"DeepNesting",
               [](json& f) {
                 json node = {{"type", "NFC"}};
                 for (int i = 0; i < 100; ++i) {
                   node = {{"type", "Sequence"}, {"normalizers", json::array({node})}};
                 }
                 f["normalizer"] = node;
               },
               "not valid JSON"}),
    [](const auto& info) { return info.param.name; });

TEST(Tokenizer, RefusesAFolderWithoutOne) {
  TemporaryFolder folder;
  try {
    const Tokenizer tokenizer(folder.path());
    FAIL() << "was accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenizer.json: No such file"));
  }
}

}  // namespace
}  // namespace tessera
