// What a reward model reads, and what keeps it from reading.
#include "worker/data/reward_text.h"

#include <gmock/gmock.h>

#include "tests/worker/data/fixtures.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr char kField[] = "reward_funcs[0].model.path";
// Ends with the token that the fixture pads with.
constexpr char kTemplate[] =
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif "
    "%}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|endoftext|>";
constexpr char kText[] = R"({"prompt": "2 + 3 =", "answer": 5})";
constexpr char kChat[] = R"({"prompt": [{"role": "user", "content": "2 + 3?"}], "tools": []})";

class RewardTextTest : public testing::Test {
 protected:
  RewardTextTest() {
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy(fixture("qwen") / file, folder_.path());
  }

  std::vector<int32_t> ids(const std::string& text) const {
    const Tokenizer tokenizer(folder_.path());
    std::vector<int32_t> ids;
    Encoder(tokenizer).encode(text, ids, /*add_special_tokens=*/false);
    return ids;
  }
  std::string failure(std::string_view record) const {
    try {
      RewardText(folder_.path(), kField).tokens(record, "5");
    } catch (const UserError& error) {
      EXPECT_EQ(error.field(), kField);
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(RewardTextTest, TextIsPromptAndCompletion) {
  RewardText text(folder_.path(), kField);
  EXPECT_EQ(text.tokens(kText, " five é"), ids("2 + 3 = five é"));
  EXPECT_EQ(text.tokens(R"({"prompt": ""})", ""), ids(""));
}

TEST_F(RewardTextTest, ConversationsAreWrittenByItsTemplate) {
  folder_.write("chat_template.jinja", kTemplate);
  RewardText text(folder_.path(), kField);
  EXPECT_EQ(text.tokens(kChat, "5"),
            ids("<|im_start|>user\n2 + 3?<|im_end|><|im_start|>assistant\n5<|im_end|>"));
}

TEST_F(RewardTextTest, PaddingAtTheEndIsNotScored) {
  RewardText text(folder_.path(), kField);
  EXPECT_EQ(text.tokens(kText, "5<|endoftext|><|endoftext|>"), ids("2 + 3 =5"));
  EXPECT_EQ(text.tokens(R"({"prompt": "<|endoftext|>"})", "<|endoftext|>"), ids("<|endoftext|>"));
}

TEST_F(RewardTextTest, SaysWhatIsMissing) {
  EXPECT_THAT(failure(kChat), HasSubstr("must have a chat template: prompts are conversations"));
  folder_.write("chat_template.jinja", kTemplate);
  EXPECT_EQ(failure(kChat), "");
  EXPECT_THAT(failure(R"({"prompt": [{"role": "system", "content": "x"}]})"),
              HasSubstr("whose chat template fails on a prompt and its completion: no system"));
  std::filesystem::remove(folder_.path() / "tokenizer.json");
  EXPECT_THAT(failure(kText), HasSubstr("must hold the reward model's tokenizer"));
}

}  // namespace
}  // namespace tessera
