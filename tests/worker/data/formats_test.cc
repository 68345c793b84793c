// What is refused in records, and how it is said. What is made of them is compared with TRL's in
// compare_formats.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/worker/data/data_fixture.h"
#include "worker/data/training_templates.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr const char* kTurns =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}";

class Formats : public ::testing::Test {
 protected:
  using Change = std::function<void(DatasetOptions&)>;

  Formats() { use_template(kTurns); }

  void use_template(const std::string& source) {
    folder_.write("chat.jinja", source);
    template_ = folder_.path() / "chat.jinja";
  }

  std::unique_ptr<Dataset> load(const std::string& lines, const Change& change = nullptr) {
    DatasetOptions options = dataset_of({folder_.write("records.jsonl", lines)});
    options.examples.chat_template_path = template_;
    options.reports.note = [this](const std::string& line) { notes_.push_back(line); };
    if (change) change(options);
    return load_dataset(options);
  }

  // "FIELD: message", or "" where nothing is refused.
  std::string problem(const std::string& lines, const Change& change = nullptr) {
    try {
      load(lines, change);
    } catch (const UserError& error) {
      return error.field() + ": " + error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  std::filesystem::path template_;
  std::vector<std::string> notes_;
};

void only_assistant(DatasetOptions& options) { options.examples.assistant_only_loss = true; }
void only_completion(DatasetOptions& options) { options.examples.completion_only_loss = true; }

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
    "\n";

TEST_F(Formats, NamesTheLineOfWhatIsNoConversation) {
  EXPECT_THAT(problem(std::string(kChat) + R"({"messages": "a"})"),
              AllOf(HasSubstr("data.train: "), HasSubstr("records.jsonl:2: \"messages\"")));
  EXPECT_THAT(problem(std::string(kChat) + R"({"messages": [{"role": "user"}, {"content": "a"}]})"),
              HasSubstr("records.jsonl:2: each message of \"messages\" must be an object with a "));
  EXPECT_THAT(problem(std::string(kChat) + R"({"text": "a"})"), HasSubstr("records.jsonl:2"));
  EXPECT_THAT(problem(R"({"prompt": "a"})"), HasSubstr("records.jsonl:1: there is a prompt, but"));
  EXPECT_THAT(problem(R"({"words": "a"})"), HasSubstr("records.jsonl:1"));
  EXPECT_THAT(problem(R"({"messages": [{"role": "user", "content": "a"}], "tools": "no JSON"})"),
              HasSubstr("records.jsonl:1: \"tools\" is a string, but not JSON"));
  EXPECT_THAT(
      problem(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": [1]})"),
      HasSubstr("\"chat_template_kwargs\" must be an object"));
}

TEST_F(Formats, NamesTheLineOfATemplateOrOfTheRecordItFailsOn) {
  use_template("a\nb {% if %}");
  EXPECT_THAT(problem(kChat), AllOf(HasSubstr("method.sft.chat_template_path: "),
                                    HasSubstr("does not parse: line 2: ")));
  use_template("{% if messages | length < 2 %}{{ raise_exception('too short') }}{% endif %}x");
  EXPECT_THAT(
      problem(std::string(kChat) + R"({"messages": [{"role": "user", "content": "a"}]})"),
      AllOf(HasSubstr("data.train: "), HasSubstr("records.jsonl:2: "), HasSubstr("too short")));
  EXPECT_THAT(problem(kChat, [](auto& o) { o.examples.chat_template_path = "/none.jinja"; }),
              HasSubstr("method.sft.chat_template_path: cannot read /none.jinja: No such file"));
  EXPECT_THAT(problem(kChat, [](auto& o) { o.examples.chat_template_path.clear(); }),
              AllOf(HasSubstr("model.tokenizer: "), HasSubstr("has no chat template")));
}

TEST_F(Formats, RefusesMasksThatTheRecordsDoNotHave) {
  EXPECT_THAT(problem(R"({"text": "a"})", only_assistant),
              HasSubstr("method.sft.assistant_only_loss: "));
  EXPECT_THAT(problem(R"({"text": "a"})", only_completion),
              HasSubstr("method.sft.completion_only_loss: "));
  EXPECT_THAT(problem(kChat, only_completion), HasSubstr("method.sft.completion_only_loss: "));
  EXPECT_THAT(problem(R"({"messages": [{"role": "user", "content": "a"}]})", only_assistant),
              HasSubstr("records.jsonl:1: no token is the assistant's"));
  use_template("{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_THAT(problem(kChat, only_assistant),
              AllOf(HasSubstr("method.sft.assistant_only_loss: "), HasSubstr("{% generation %}")));
}

TEST_F(Formats, RefusesTokensWithMasksOfAnotherLength) {
  EXPECT_THAT(problem(R"({"input_ids": [1, 2], "labels": [1]})"),
              HasSubstr("\"labels\" must be a list as long as \"input_ids\""));
  EXPECT_THAT(problem(R"({"input_ids": [1, 2], "labels": [1, 3]})"),
              HasSubstr("label 1 is 3; it must be -100, or the token 2"));
  EXPECT_THAT(problem(R"({"input_ids": [1, -2]})"), HasSubstr("holds -2, which is no token id"));
  EXPECT_THAT(problem(R"({"input_ids": [1], "assistant_masks": [2]})"), HasSubstr("0 or 1"));
  EXPECT_THAT(problem(R"({"input_ids": 1})"), HasSubstr("must be a list of token ids"));
}

TEST_F(Formats, RefusesTheTemplateOfATokenizerWithOtherTokens) {
  const auto other = [](DatasetOptions& o) { o.examples.chat_template_path = fixture("llama3"); };
  EXPECT_THAT(problem(kChat, other), HasSubstr("has no chat template"));
  const auto directory = folder_.path() / "other";
  std::filesystem::copy(fixture("llama3"), directory);
  std::ofstream(directory / "chat_template.jinja") << kTurns;
  const auto marked = [&](DatasetOptions& o) { o.examples.chat_template_path = directory; };
  EXPECT_THAT(problem(kChat, marked),
              AllOf(HasSubstr("method.sft.chat_template_path: "), HasSubstr("has the token \"<|")));
}

TEST_F(Formats, TakesTemplateAndEosTokenOfAnotherTokenizer) {
  const auto directory = folder_.path() / "other";
  std::filesystem::create_directory(directory);
  std::ofstream(directory / "chat_template.jinja") << "{{ messages[0].content + eos_token }}";
  std::ofstream(directory / "tokenizer_config.json") << R"({"eos_token": "<|im_start|>"})";
  const auto dataset =
      load(kChat, [&](DatasetOptions& o) { o.examples.chat_template_path = directory; });
  EXPECT_THAT(decoded_rows(*dataset), ElementsAre("a<|im_start|>"));
}

TEST_F(Formats, SaysOnceThatTokensMergeOverTheBorder) {
  const std::string line = R"({"prompt": "e", "completion": "f"})"
                           "\n";
  load(line + line);
  ASSERT_THAT(notes_, SizeIs(2));
  EXPECT_THAT(notes_[0], AllOf(HasSubstr("records.jsonl:1: "), EndsWith("(said once)")));
}

TEST_F(Formats, SaysThatTheEndOfATurnIsNotCounted) {
  use_template(
      "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
      "<|im_end|>{% endfor %}");
  load(kChat, only_assistant);
  ASSERT_THAT(notes_, SizeIs(2));
  EXPECT_THAT(notes_[0], HasSubstr("may not learn to stop"));
  notes_.clear();
  use_template(kTurns);
  load(kChat, only_assistant);
  EXPECT_THAT(notes_, SizeIs(1)) << notes_.front();
}

TEST(TrainingTemplates, MarksOneThatIsKnown) {
  // Phi-3's.
  const std::string known =
      "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + "
      "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + "
      "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
      "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}";
  const auto marked = training_template(known);
  ASSERT_TRUE(marked);
  EXPECT_THAT(*marked, AllOf(HasSubstr("{% generation %}{{ message['content'] + '<|end|>\n' }}"),
                             HasSubstr("{% generation %}{{ eos_token }}{% endgeneration %}")));
  EXPECT_FALSE(training_template(known + " "));
}

}  // namespace
}  // namespace tessera
