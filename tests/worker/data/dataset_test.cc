#include "worker/data/dataset.h"

#include <gmock/gmock.h>

#include "tests/worker/data/data_fixture.h"
#include "worker/data/record_reader.h"
#include "worker/data/tokenizer.h"
#include "worker/errors.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DatasetOptions options_for(const std::filesystem::path& path) { return dataset_of({path}); }

TEST(Dataset, AppendsEosWhereMissing) {
  TemporaryFolder folder;
  const auto path = folder.write("a.jsonl", text_lines({"one", "two<|im_end|>", ""}));
  EXPECT_THAT(decoded_rows(*load_dataset(options_for(path))),
              ElementsAre("one<|im_end|>", "two<|im_end|>", "<|im_end|>"));
  auto options = options_for(path);
  options.examples.eos_token = "<|endoftext|>";
  EXPECT_THAT(decoded_rows(*load_dataset(options)),
              ElementsAre("one<|endoftext|>", "two<|im_end|><|endoftext|>", "<|endoftext|>"));
}

TEST(Dataset, TruncatesFromTheRight) {
  TemporaryFolder folder;
  auto options = options_for(folder.write("a.jsonl", text_lines({"1234567", "12"})));
  options.max_length = 4;
  EXPECT_THAT(decoded_rows(*load_dataset(options)), ElementsAre("1234", "12<|im_end|>"));
}

TEST(Dataset, PacksWholeDocuments) {
  TemporaryFolder folder;
  auto options = options_for(folder.write("a.jsonl", text_lines({"12", "1234", "1"})));
  options.max_length = 5;
  options.packing = PackingStrategy::kBfd;
  const auto dataset = load_dataset(options);
  EXPECT_THAT(decoded_rows(*dataset), ElementsAre("1234<|im_end|>", "12<|im_end|>1<|im_end|>"));
  EXPECT_THAT(dataset->row(1).lengths, ElementsAre(3, 2));
  EXPECT_EQ(dataset->num_tokens(1), 5);
  EXPECT_EQ(dataset->num_labels(1), 3);
}

TEST(Dataset, AWrappedRowIsOneDocument) {
  TemporaryFolder folder;
  auto options = options_for(folder.write("a.jsonl", text_lines({"12", "1234"})));
  options.max_length = 5;
  options.packing = PackingStrategy::kWrapped;
  const auto dataset = load_dataset(options);
  EXPECT_THAT(decoded_rows(*dataset), ElementsAre("12<|im_end|>12", "34<|im_end|>"));
  EXPECT_THAT(dataset->row(0).lengths, ElementsAre(5));
  EXPECT_EQ(dataset->num_labels(0), 4);
}

TEST(Dataset, DoesNotDependOnThreads) {
  TemporaryFolder folder;
  std::vector<std::string> all;
  for (int i = 0; i < 1500; ++i) all.push_back("document " + std::to_string(i * 7919));
  auto options = options_for(folder.write("a.jsonl", text_lines(all)));
  options.max_length = 32;
  options.packing = PackingStrategy::kBfdSplit;
  const auto one = load_dataset(options);
  options.num_threads = 4;
  const auto four = load_dataset(options);
  ASSERT_EQ(one->size(), four->size());
  for (int64_t i = 0; i < one->size(); ++i) {
    EXPECT_EQ(one->row(i).tokens, four->row(i).tokens);
    EXPECT_EQ(one->row(i).lengths, four->row(i).lengths);
  }
}

TEST(Dataset, SkipsBlankLinesAndAByteOrderMark) {
  TemporaryFolder folder;
  const auto path =
      folder.write("a.jsonl", "\xEF\xBB\xBF{\"text\": \"a\"}\r\n\n  \t\n{\"text\": \"b\"}");
  EXPECT_THAT(decoded_rows(*load_dataset(options_for(path))),
              ElementsAre("a<|im_end|>", "b<|im_end|>"));
}

TEST(Dataset, ReadsASample) {
  TemporaryFolder folder;
  auto options = options_for(folder.write("a.jsonl", text_lines({"a", "b"}) + "not JSON\n"));
  options.max_documents = 2;
  EXPECT_EQ(load_dataset(options)->size(), 2);
}

TEST(Dataset, ReadsTheFieldAskedFor) {
  TemporaryFolder folder;
  auto options = options_for(folder.write("a.jsonl", R"({"text": 1, "body": "x"})"));
  options.examples.text_field = "body";
  EXPECT_THAT(decoded_rows(*load_dataset(options)), ElementsAre("x<|im_end|>"));
}

void expect_error(const DatasetOptions& options, const std::string& field,
                  const std::string& message) {
  try {
    load_dataset(options);
    FAIL() << "was accepted; should say: " << message;
  } catch (const UserError& error) {
    EXPECT_EQ(error.field(), field);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(Dataset, NamesTheLineOfAnError) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\": ", "not valid JSON"},
      {"{\"text\": \"a\"} x", "not valid JSON"},
      {"{\"text\": \"\xFF\"}", "UTF-8"},
      {"[1]", "not a JSON object"},
      {"{\"txt\": \"a\"}", "there is no field \"text\""},
      {"{\"text\": null}", "the field \"text\" is not a string"},
      {"{\"text\": 5}", "the field \"text\" is not a string"},
  };
  for (const auto& [line, message] : cases) {
    TemporaryFolder folder;
    std::string contents = "\n";
    for (int i = 0; i < 15; ++i) contents += "{\"text\": \"fine\"}\n";
    const auto path = folder.write("a.jsonl", contents + line + "\n{\"text\": 7}\n");
    expect_error(options_for(path), "data.train", path.string() + ":17: ");
    expect_error(options_for(path), "data.train", message);
  }
}

// Of two errors far apart the first in the file is told, though another thread may meet the other
// first.
TEST(Dataset, ReportsTheFirstErrorWhateverTheThreads) {
  TemporaryFolder folder;
  std::string contents;
  for (int i = 1; i <= 2000; ++i) {
    contents += i == 700 || i == 1400 ? "{}\n" : "{\"text\": \"fine\"}\n";
  }
  auto options = options_for(folder.write("a.jsonl", contents));
  options.num_threads = 4;
  for (int round = 0; round < 5; ++round) expect_error(options, "data.train", "a.jsonl:700: ");
}

TEST(Dataset, RefusesFilesWithNothingInThem) {
  TemporaryFolder folder;
  expect_error(options_for(folder.write("a.jsonl", "")), "data.train", "there are no documents");
  expect_error(options_for(folder.write("b.jsonl", "\n \n")), "data.train",
               "there are no documents");
  expect_error(options_for(folder.path() / "none.jsonl"), "data.train", "No such file");
  expect_error(options_for(folder.path()), "data.train", "there are no documents");
  expect_error(options_for(fixture("none")), "data.train", "No such file");
  std::filesystem::create_directory(folder.path() / "empty");
  expect_error(options_for(folder.path() / "empty"), "data.train",
               "there are no .jsonl, .json or .parquet files in it");
  expect_error(options_for(folder.path() / "*.parquet"), "data.train", "no file matches");
}

TEST(Dataset, RefusesALineWithoutEnd) {
  TemporaryFolder folder;
  const auto path = folder.write("a.jsonl", std::string(kMaxLineBytes + 1, 'x'));
  expect_error(options_for(path), "data.train", "a.jsonl:1: the line is longer than");
}

TEST(Dataset, RefusesIdsTheModelDoesNotHave) {
  TemporaryFolder folder;
  auto options = options_for(folder.write("a.jsonl", text_lines({"fine"})));
  options.vocab_size = Tokenizer(fixture("qwen")).vocab_size();
  EXPECT_EQ(load_dataset(options)->size(), 1);
  options.vocab_size -= 1;
  expect_error(options, "data.train", "gives \"<|im_end|>\" the id ");
}

TEST(Dataset, RefusesWithoutAnEosToken) {
  TemporaryFolder folder;
  const auto path = folder.write("a.jsonl", text_lines({"a"}));
  auto options = options_for(path);
  options.examples.eos_token = "<|none|>";
  expect_error(options, "method.sft.eos_token", "\"<|none|>\" is not in the vocabulary");
  std::filesystem::copy_file(fixture("qwen/tokenizer.json"), folder.path() / "tokenizer.json");
  options = options_for(path);
  options.examples.tokenizer = folder.path();
  expect_error(options, kTokenizerField, "names no eos_token");
  folder.write("config.json", R"({"eos_token_id": [258, 1]})");
  EXPECT_EQ(load_dataset(options)->size(), 1);
}

}  // namespace
}  // namespace tessera
