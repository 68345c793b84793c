#include "worker/generate/end_tokens.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/worker/data/fixtures.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

class EndTokensTest : public ::testing::Test {
 protected:
  ~EndTokensTest() override { std::filesystem::remove_all(model_); }

  std::vector<int32_t> found() const { return end_tokens(model_, tokenizer_); }
  void write(const char* name, const char* text) const { std::ofstream(model_ / name) << text; }

  const std::filesystem::path model_ = [] {
    std::string name = ::testing::TempDir() + "end_tokens_XXXXXX";
    return std::filesystem::path(mkdtemp(name.data()));
  }();
  const Tokenizer tokenizer_{fixture("gpt2")};
  const int32_t own_ = tokenizer_.id_of(tokenizer_.eos_token()).value();
};

TEST_F(EndTokensTest, AreTheTokenizersWhereTheModelNamesNone) {
  EXPECT_THAT(found(), ElementsAre(own_));
  write("config.json", R"({"eos_token_id": null})");
  EXPECT_THAT(found(), ElementsAre(own_));
}

TEST_F(EndTokensTest, AreThoseOfTheModelToo) {
  write("config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(found(), ElementsAre(7, own_));
  write("generation_config.json", R"({"eos_token_id": [3, 5, 3]})");
  EXPECT_THAT(found(), ElementsAre(3, 5, own_)) << "the config for generation goes first";
}

TEST_F(EndTokensTest, NameTheFileThatIsWrong) {
  write("generation_config.json", R"({"eos_token_id": "</s>"})");
  try {
    found();
    FAIL() << "it was taken";
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), "model.path");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("generation_config.json"));
  }
}

}  // namespace
}  // namespace tessera
