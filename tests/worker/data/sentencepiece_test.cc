// SentencePiece models that are broken. Those that work are in tokenizer_test.cc.
#include <gmock/gmock.h>

#include <fstream>
#include <random>
#include <sstream>

#include "tests/worker/data/fixtures.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// Reads a folder of the model and of what stands beside it in the fixture, and uses it. Whether it
// was accepted.
bool accepts(const char* name, const std::string& model) {
  TemporaryFolder folder;
  folder.write("tokenizer.model", model);
  for (const auto* beside : {"tokenizer_config.json", "config.json"}) {
    folder.write(beside, bytes_of(fixture(name) / beside));
  }
  try {
    const Tokenizer tokenizer(folder.path());
    std::vector<int32_t> ids;
    std::vector<Span> offsets;
    Encoder(tokenizer).encode("The ranks, 1998 \u00e9\u4e9c <s>\U0001f44d", ids, offsets);
    EXPECT_EQ(ids.size(), offsets.size());
    tokenizer.decode(ids);
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), kTokenizerField);
    EXPECT_THAT(error.what(), HasSubstr((folder.path() / "tokenizer.model").string()));
    return false;
  } catch (const std::invalid_argument&) {  // a text that the model has no tokens for
  }
  return true;
}

class BrokenSentencePiece : public testing::TestWithParam<const char*> {
 protected:
  const std::string model_ = bytes_of(fixture(GetParam()) / "tokenizer.model");
};

TEST_P(BrokenSentencePiece, CutShortIsRefusedOrUsed) {
  EXPECT_TRUE(accepts(GetParam(), model_));
  int num_refused = 0;
  for (size_t size = 0; size < model_.size(); size += 1 + model_.size() / 100) {
    num_refused += !accepts(GetParam(), model_.substr(0, size));
  }
  EXPECT_GT(num_refused, 50);
}

TEST_P(BrokenSentencePiece, WithBytesChangedIsRefusedOrUsed) {
  std::mt19937 random(3);
  int num_refused = 0;
  for (int round = 0; round < 150; ++round) {
    std::string model = model_;
    const auto num_changes = 1 + random() % 8;
    for (size_t i = 0; i < num_changes; ++i) {
      model[random() % model.size()] = static_cast<char>(random());
    }
    num_refused += !accepts(GetParam(), model);
  }
  EXPECT_GT(num_refused, 50);
}

INSTANTIATE_TEST_SUITE_P(Models, BrokenSentencePiece,
                         testing::Values("spm_llama", "spm_mistral", "spm_t5", "spm_unigram",
                                         "spm_xlm_roberta"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SentencePiece, IsRefusedWhereItIsText) {
  EXPECT_FALSE(accepts("spm_llama", "not a model\n"));
  EXPECT_FALSE(accepts("spm_llama", ""));
}

TEST(SentencePiece, IsRefusedByAClassOfBytes) {
  TemporaryFolder folder;
  folder.write("tokenizer.model", bytes_of(fixture("spm_llama/tokenizer.model")));
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  try {
    const Tokenizer tokenizer(folder.path());
    FAIL() << "was accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is a SentencePiece model, which GPT2Tokenizer does not"));
  }
}

}  // namespace
}  // namespace tessera
