#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "tests/worker/checkpoint/fixture.h"
#include "worker/checkpoint/config_json.h"
#include "worker/checkpoint/export.h"
#include "worker/model/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::Backend;
using testing::contents;
using testing::example_layouts;
using testing::example_shards;
using testing::names_in;
using testing::run_ranks;
using testing::TempDir;
using testing::write_file;

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    fs::create_directory(source());
    write_file(source() / "config.json",
               R"({"model_type": "llama", "torch_dtype": "float16", "z": 1, "a": 2})");
    write_file(source() / "generation_config.json", "{}");
    write_file(source() / "tokenizer.json", "{\"version\": \"1.0\"}");
    write_file(source() / "secret.txt", "not to be copied");
  }

  fs::path source() const { return directory_.path() / "source"; }
  fs::path final() const { return directory_.path() / "out" / "final"; }

  void write(int world_size, at::ScalarType dtype, int64_t max_file_bytes, int generation = 0) {
    run_ranks(Backend::kThreads, world_size, [&](Collectives& ranks) {
      const auto shards = example_shards(ranks.rank(), world_size, generation);
      const auto read = [&](size_t layout, int64_t begin, int64_t numel) {
        return shards[layout].data.narrow(0, begin, numel);
      };
      const int64_t bytes = export_hugging_face({.directory = final(),
                                                 .model_source = source(),
                                                 .tokenizer_source = source(),
                                                 .chat_template = chat_template_,
                                                 .dtype = dtype,
                                                 .max_file_bytes = max_file_bytes},
                                                example_layouts(world_size), read, ranks);
      EXPECT_EQ(bytes,
                (50 * 24 + 24 + 31 * 24 + 3) * static_cast<int64_t>(c10::elementSize(dtype)));
    });
  }

  TempDir directory_;
  std::string chat_template_;
};

void expect_weights(const fs::path& directory, at::ScalarType dtype, int generation) {
  const WeightFiles files = WeightFiles::open(directory);
  const auto layouts = example_layouts(1);
  size_t count = 0;
  for (size_t vector = 0; vector < layouts.size(); ++vector) {
    for (const FlatEntry& entry : layouts[vector].entries) {
      ASSERT_TRUE(files.tensors().contains(entry.name));
      EXPECT_EQ(files.tensors().at(entry.name).shape, entry.shape);
      EXPECT_EQ(files.tensors().at(entry.name).dtype, dtype);
      at::Tensor read = at::empty({entry.numel}, at::TensorOptions(dtype));
      files.read(entry.name, 0, read);
      at::Tensor expected = at::empty({entry.numel}, at::kFloat);
      for (int64_t i = 0; i < entry.numel; ++i) {
        expected.data_ptr<float>()[i] =
            testing::element(static_cast<int>(vector), entry.offset + i, generation);
      }
      EXPECT_TRUE(at::equal(read, expected.to(dtype))) << entry.name;
      ++count;
    }
  }
  EXPECT_EQ(files.tensors().size(), count);
}

TEST_F(ExportTest, IsTheSameFileFromAnyWorldSize) {
  std::string first;
  for (int world_size : {1, 2, 3, 5}) {
    write(world_size, at::kFloat, int64_t{5} << 30);
    expect_weights(final(), at::kFloat, 0);
    const std::string bytes = contents(final() / "model.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << "at world size " << world_size;
  }
}

TEST_F(ExportTest, CopiesWhatBelongsToTheModelAndSetsTheDtype) {
  write(2, at::kBFloat16, int64_t{5} << 30);
  expect_weights(final(), at::kBFloat16, 0);
  EXPECT_THAT(names_in(final()), ::testing::ElementsAre("config.json", "generation_config.json",
                                                        "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(contents(final() / "config.json"),
            R"({"model_type": "llama", "torch_dtype": "bfloat16", "z": 1, "a": 2})");
  EXPECT_EQ(contents(final() / "tokenizer.json"), contents(source() / "tokenizer.json"));
}

TEST_F(ExportTest, WritesTheChatTemplateInPlaceOfTheTokenizers) {
  write_file(source() / "chat_template.jinja", "old");
  fs::create_directory(source() / "additional_chat_templates");
  write_file(source() / "additional_chat_templates" / "tool_use.jinja", "old");
  chat_template_ = "new";
  write(1, at::kFloat, int64_t{5} << 30);
  EXPECT_EQ(contents(final() / "chat_template.jinja"), "new");
  EXPECT_FALSE(fs::exists(final() / "additional_chat_templates"));
}

TEST_F(ExportTest, SplitsIntoFilesWithAnIndex) {
  write(3, at::kHalf, 1500);
  expect_weights(final(), at::kHalf, 0);
  EXPECT_THAT(names_in(final()),
              ::testing::IsSupersetOf(
                  {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                   "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  const auto index = nlohmann::json::parse(contents(final() / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 3942);
  EXPECT_EQ(index["metadata"]["total_parameters"], 1971);
  EXPECT_EQ(index["weight_map"]["model.layers.0.q.weight"], "model-00003-of-00003.safetensors");
}

TEST(ConfigDtype, ChangesNothingElse) {
  const std::string text = R"({
  "a": {"dtype": "x", "b": ["}", "\"", {"c": 1e-06}]},
  "dtype" : null ,
  "z": 1.50
})";
  std::string expected = text;
  expected.replace(expected.find("null"), 4, "\"float16\"");
  EXPECT_EQ(config_with_dtype(text, "float16"), expected);
  EXPECT_EQ(config_with_dtype(expected, "float16"), expected);
  EXPECT_EQ(config_with_dtype(R"({"torch_dtype": "float32", "dtype":"float32"})", "bfloat16"),
            R"({"torch_dtype": "bfloat16", "dtype":"bfloat16"})");
}

TEST(ConfigDtype, IsAddedWhereItIsSorted) {
  EXPECT_EQ(config_with_dtype("{\n  \"a\": 1,\n  \"e\": 2\n}\n", "float32"),
            "{\n  \"a\": 1,\n  \"dtype\": \"float32\",\n  \"e\": 2\n}\n");
  EXPECT_EQ(config_with_dtype("{\n  \"a\": 1\n}\n", "float32"),
            "{\n  \"a\": 1,\n  \"dtype\": \"float32\"\n}\n");
  EXPECT_EQ(config_with_dtype("{}", "float32"), "{\n  \"dtype\": \"float32\"\n}\n");
  for (const char* text : {"", "[]", "{", "{\"a\": }", "\"dtype\""})
    EXPECT_EQ(config_with_dtype(text, "float32"), "") << text;
}

TEST(ConfigOfClassifier, NamesTheClassItsOneLabelAndThePadding) {
  EXPECT_EQ(config_of_classifier(R"({
  "architectures": [
    "LlamaForCausalLM"
  ],
  "model_type": "llama",
  "pad_token_id": null,
  "rms_norm_eps": 1e-06
}
)",
                                 "Llama", 7),
            R"({
  "architectures": [
    "LlamaForSequenceClassification"
  ],
  "id2label": {
    "0": "LABEL_0"
  },
  "label2id": {
    "LABEL_0": 0
  },
  "model_type": "llama",
  "pad_token_id": 7,
  "rms_norm_eps": 1e-06
}
)");
}

TEST(ConfigOfClassifier, KeepsTheNameOfOneLabelAndReplacesMore) {
  const std::string named =
      R"({"architectures": ["X"], "id2label": {"0": "reward"}, "label2id": {"reward": 0}})";
  EXPECT_THAT(config_of_classifier(named, "Qwen3", -1),
              ::testing::EndsWith(R"("id2label": {"0": "reward"}, "label2id": {"reward": 0}})"));
  const auto two = nlohmann::json::parse(config_of_classifier(
      R"({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}, "num_labels": 2})",
      "Qwen3", -1));
  EXPECT_EQ(two["id2label"], (nlohmann::json{{"0", "LABEL_0"}}));
  EXPECT_EQ(two["label2id"], (nlohmann::json{{"LABEL_0", 0}}));
  EXPECT_EQ(two["num_labels"], 1);
  EXPECT_FALSE(two.contains("pad_token_id"));
  EXPECT_EQ(config_of_classifier("[]", "Qwen3", 0), "");
}

TEST_F(ExportTest, ReplacesAnEarlierOneWhole) {
  write(2, at::kFloat, 2000);
  write(2, at::kFloat, int64_t{5} << 30, 1);
  expect_weights(final(), at::kFloat, 1);
  EXPECT_FALSE(fs::exists(final() / "model.safetensors.index.json"));
  EXPECT_THAT(names_in(final().parent_path()), ::testing::ElementsAre("final"));
}

TEST_F(ExportTest, AFailureLeavesNothing) {
  fs::remove(source() / "config.json");
  EXPECT_THROW(write(2, at::kFloat, int64_t{5} << 30), std::system_error);
  EXPECT_THAT(names_in(final().parent_path()), ::testing::IsEmpty());
}

// What comes before a layout may be a collective, as gathering its weights is.
TEST_F(ExportTest, ARankThatFailsKeepsOthersWaitingNowhere) {
  std::atomic<int> num_failed = 0;
  run_ranks(Backend::kThreads, 2, [&](Collectives& ranks) {
    const auto shards = example_shards(ranks.rank(), 2, 0);
    ExportOptions options{
        .directory = final(), .model_source = source(), .tokenizer_source = source()};
    options.before_layout = [&](size_t) { ranks.barrier(); };
    const auto read = [&](size_t layout, int64_t begin, int64_t numel) {
      if (ranks.rank() == 1) throw std::system_error(ENOSPC, std::generic_category(), "disk");
      return shards[layout].data.narrow(0, begin, numel);
    };
    try {
      export_hugging_face(options, example_layouts(2), read, ranks);
    } catch (const std::system_error&) {
      ++num_failed;
    }
  });
  EXPECT_EQ(num_failed, 2);
  EXPECT_THAT(names_in(final().parent_path()), ::testing::IsEmpty());
}

TEST_F(ExportTest, PythonReadsIt) {
  if (!fs::exists(TESSERA_TEST_PYTHON)) GTEST_SKIP() << "no .venv";
  write(3, at::kBFloat16, int64_t{5} << 30);
  write_file(directory_.path() / "check.py", R"(
import sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework="pt") as file:
    assert file.metadata() == {"format": "pt"}
    names = ["embed_tokens", "layers.0.norm", "layers.0.q", "norm"]
    assert sorted(file.keys()) == [f"model.{name}.weight" for name in names], file.keys()
    q = file.get_tensor("model.layers.0.q.weight")
    assert list(q.shape) == [31, 24] and str(q.dtype) == "torch.bfloat16"
    # The entry begins 256 elements into its flat vector, the second of the fixture.
    import torch
    expected = 100_000 + 256 + torch.arange(31 * 24, dtype=torch.float32)
    assert torch.equal(q.flatten(), expected.to(torch.bfloat16))
)");
  const std::string command = std::string(TESSERA_TEST_PYTHON) + " " +
                              (directory_.path() / "check.py").string() + " " +
                              (final() / "model.safetensors").string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace tessera
