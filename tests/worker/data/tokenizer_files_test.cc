// Files of tokenizers that cannot be used.
#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "tests/worker/data/fixtures.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

void expect_refused(const TemporaryFolder& folder, const char* file, const char* message) {
  try {
    const Tokenizer tokenizer(folder.path());
    ADD_FAILURE() << "was accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), kTokenizerField);
    EXPECT_THAT(error.what(), HasSubstr((folder.path() / file).string()));
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
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
  expect_refused(folder, "tokenizer.json", GetParam().message);
}

std::string name_of(const testing::TestParamInfo<Broken>& info) { return info.param.name; }

json split_by(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

INSTANTIATE_TEST_SUITE_P(
    Models, BrokenTokenizer,
    testing::Values(
        Broken{"NotAnObject", [](json& f) { f = json::array(); }, "is not an object"},
        Broken{"NoModel", [](json& f) { f.erase("model"); }, "has no \"model\""},
        Broken{"OtherModel", [](json& f) { f["model"]["type"] = "Sideways"; },
               "model is of type Sideways"},
        Broken{"Dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, "model.dropout is set"},
        Broken{"BytesBesideSuffix",
               [](json& f) {
                 f["model"]["byte_fallback"] = true;
                 f["model"]["end_of_word_suffix"] = "</w>";
               },
               "byte_fallback is set beside"},
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
        Broken{"UnigramOfNames",
               [](json& f) { f["model"] = {{"type", "Unigram"}, {"vocab", {{"a", -1.5}, {"b"}}}}; },
               "has at 1 something that is not a pair of a token and its score"},
        Broken{"UnknownOutside",
               [](json& f) {
                 f["model"] = {
                     {"type", "Unigram"}, {"unk_id", 7}, {"vocab", json::array({{"a", -1.5}})}};
               },
               "unk_id is not the id of a token"},
        Broken{"UnknownNotThere",
               [](json& f) {
                 f["model"] = {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"a", 0}}}};
               },
               "unk_token is \"?\", which is not in the vocabulary"}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Parts, BrokenTokenizer,
    testing::Values(
        Broken{"OtherNormalizer", [](json& f) { f["normalizer"] = {{"type", "Sideways"}}; },
               "normalizer is of type Sideways, which is not supported"},
        Broken{"OtherNormalizerInside",
               [](json& f) {
                 f["normalizer"] = {{"type", "Sequence"},
                                    {"normalizers", {{{"type", "NFC"}}, {{"type", "Sideways"}}}}};
               },
               "normalizer.normalizers[1] is of type Sideways, which is not supported"},
        Broken{"NoBase64",
               [](json& f) {
                 f["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}};
               },
               "precompiled_charsmap is not base64"},
        Broken{"NoCharsmap",
               [](json& f) {
                 f["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAAAAAA"}};
               },
               "precompiled_charsmap is no map of characters"},
        Broken{"OtherPreTokenizer",
               [](json& f) { f["pre_tokenizer"] = {{"type", "UnicodeScripts"}}; },
               "pre_tokenizer is of type UnicodeScripts, which is not supported"},
        Broken{"OtherScheme",
               [](json& f) {
                 f["pre_tokenizer"] = {
                     {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "sometimes"}};
               },
               "\"sometimes\", which is no scheme of Metaspace"},
        Broken{"BadPattern",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][1] = split_by("(a"); },
               "pretokenizers[1].pattern cannot be used"},
        Broken{"OddPattern",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][1] = split_by("\\k<a>"); },
               "\\k at offset 0 is not supported"},
        Broken{"BadBehavior",
               [](json& f) { f["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Sideways"; },
               "no behavior of Split"},
        Broken{"OtherPostProcessor", [](json& f) { f["post_processor"] = {{"type", "Sideways"}}; },
               "post_processor is of type Sideways, which is not supported"},
        Broken{"OtherDecoder", [](json& f) { f["decoder"] = {{"type", "CTC"}}; },
               "decoder is of type CTC, which is not supported"},
        Broken{"AddedWithoutContent", [](json& f) { f["added_tokens"][0].erase("content"); },
               "added_tokens[0] has no \"content\""},
        Broken{"DeepNesting",
               [](json& f) {
                 json node = {{"type", "NFC"}};
                 for (int i = 0; i < 100; ++i) {
                   node = {{"type", "Sequence"}, {"normalizers", json::array({node})}};
                 }
                 f["normalizer"] = node;
               },
               "not valid JSON"}),
    name_of);

TEST(TokenizerFiles, RefusesAFolderWithoutOne) {
  const TemporaryFolder folder;
  expect_refused(folder, "tokenizer.json", "No such file");
}

TEST(TokenizerFiles, RefusesAClassWithUnknownRules) {
  TemporaryFolder folder;
  folder.write("tokenizer.json", read_json_fixture("splits/tokenizer.json").dump());
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "WhisperTokenizerFast"})");
  expect_refused(folder, "tokenizer_config.json", "tokenizer_class is WhisperTokenizer, which");
}

TEST(TokenizerFiles, RefusesAModelThatTheClassDoesNotRead) {
  TemporaryFolder folder;
  folder.write("tokenizer.json", read_json_fixture("splits/tokenizer.json").dump());
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  expect_refused(folder, "tokenizer.json", "model is of type BPE where the tokenizer_class needs");
}

TEST(TokenizerFiles, RefusesAConfigThatIsNone) {
  TemporaryFolder folder;
  folder.write("tokenizer.json", read_json_fixture("splits/tokenizer.json").dump());
  folder.write("tokenizer_config.json", R"({"eos_token": 7})");
  expect_refused(folder, "tokenizer_config.json", "eos_token");
}

// Somewhere in the file, the further down the rarer.
json& random_node(json& root, std::mt19937& random) {
  json* node = &root;
  while (node->is_structured() && !node->empty() && random() % 8 != 0) {
    node = &*std::next(node->begin(), static_cast<ptrdiff_t>(random() % node->size()));
  }
  return *node;
}

// A file with one value changed is refused or used, whatever the value.
TEST(TokenizerFiles, OfAnyContentDoNoHarm) {
  const json values[] = {nullptr,          true, -1,  3,        1e300,
                         int64_t{1} << 40, "",   "x", "\u2581", json::array(),
                         json::object()};
  std::mt19937 random(17);
  int num_refused = 0;
  for (const auto* name :
       {"llama2", "unigram_plain", "word_level", "splits", "continuing_prefix", "end_of_word"}) {
    const json original = read_json_fixture(std::string(name) + "/tokenizer.json");
    for (int round = 0; round < 50; ++round) {
      json file = original;
      random_node(file, random) = values[random() % std::size(values)];
      TemporaryFolder folder;
      folder.write("tokenizer.json", file.dump());
      try {
        const Tokenizer tokenizer(folder.path());
        std::vector<int32_t> ids;
        std::vector<Span> offsets;
        Encoder(tokenizer).encode("The ranks, 1998 \u00e9\u4e9c <s>\U0001f44d", ids, offsets);
        EXPECT_EQ(ids.size(), offsets.size());
        tokenizer.decode(ids);
      } catch (const UserError&) {
        ++num_refused;
      } catch (const std::invalid_argument&) {  // a text that the model has no tokens for
      }
    }
  }
  EXPECT_GT(num_refused, 100);
}

}  // namespace
}  // namespace tessera
