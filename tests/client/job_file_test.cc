#include "client/cpp/job_file.h"

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/yaml_message.h"
#include "client/cpp/yaml_tree.h"
#include "tessera/v1/trainer.pb.h"
#include "tests/client/temp_dir.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kGood[] = R"(name: demo
method:
  sft: { max_length: 512, packing: true, packing_strategy: bfd }
model: { path: models/m, dtype: bfloat16 }
data:
  train: ../corpus.jsonl
  eval: /held.jsonl
training:
  max_steps: 200
  learning_rate: 1.0e-3
  shuffle_dataset: false
  save_strategy: no
  output_dir: out
parallelism: { num_processes: 2 }
resources: { hang_timeout: 1.5 }
)";

JobFile parse(const std::string& text) { return parse_job_file(text, "job.yaml", "/jobs"); }

TEST(JobFileTest, ReadsEveryType) {
  const JobFile job = parse(kGood);
  ASSERT_THAT(job.errors, IsEmpty());
  EXPECT_EQ(job.spec.name(), "demo");
  EXPECT_EQ(job.spec.method().sft().max_length(), 512);
  EXPECT_TRUE(job.spec.method().sft().packing());
  EXPECT_EQ(job.spec.model().path(), "/jobs/models/m");
  EXPECT_EQ(job.spec.model().dtype(), "bfloat16");
  EXPECT_THAT(job.spec.data().train(), ElementsAre("/corpus.jsonl"));
  EXPECT_THAT(job.spec.data().eval(), ElementsAre("/held.jsonl"));
  EXPECT_EQ(job.spec.training().max_steps(), 200);
  EXPECT_EQ(job.spec.training().learning_rate(), 1e-3);
  EXPECT_FALSE(job.spec.training().shuffle_dataset());
  EXPECT_EQ(job.spec.training().save_strategy(), "no");
  EXPECT_EQ(job.spec.training().output_dir(), "/jobs/out");
  EXPECT_EQ(job.spec.parallelism().dp_shard_size(), 2);
  EXPECT_EQ(job.spec.resources().hang_timeout().seconds(), 1);
  EXPECT_EQ(job.spec.resources().hang_timeout().nanos(), 500000000);
  EXPECT_EQ(job.spec.training().seed(), 42) << "defaults are filled in";
}

TEST(JobFileTest, ReadsJson) {
  const JobFile job = parse(R"({
	"name": "demo\u00e9".
})");
  EXPECT_THAT(job.errors, SizeIs(1)) << "a full stop is no JSON";
  const JobFile good = parse(R"({
	"name":"demo","method":{"sft":{}},"model":{"path":"m\u002fn"},
	"data": {"train": "t"}, "training": {"output_dir": "o", "learning_rate": 1E-3},
	"resources": {"hang_timeout": "90s"}
})");
  EXPECT_THAT(good.errors, IsEmpty());
  EXPECT_EQ(good.spec.model().path(), "/jobs/m/n");
  EXPECT_EQ(good.spec.training().learning_rate(), 1e-3);
  EXPECT_EQ(good.spec.resources().hang_timeout().seconds(), 90);
}

TEST(JobFileTest, ReadsLists) {
  const JobFile job = parse(R"(name: a
method: {sft: {}}
model: {path: m}
data:
  mixture:
    - { path: [a.jsonl, "b/*.parquet"], weight: 3 }
    - path: ../c
  eval: [x.jsonl, /y.jsonl]
training: {output_dir: o}
)");
  ASSERT_THAT(job.errors, IsEmpty());
  const v1::Data& data = job.spec.data();
  ASSERT_EQ(data.mixture_size(), 2);
  EXPECT_THAT(data.mixture(0).path(), ElementsAre("/jobs/a.jsonl", "/jobs/b/*.parquet"));
  EXPECT_EQ(data.mixture(0).weight(), 3);
  EXPECT_THAT(data.mixture(1).path(), ElementsAre("/c"));
  EXPECT_EQ(data.mixture(1).weight(), 1) << "the default";
  EXPECT_THAT(data.eval(), ElementsAre("/jobs/x.jsonl", "/y.jsonl"));
}

TEST(JobFileTest, AnEmptySectionIsAllDefaults) {
  const JobFile job = parse(
      "name: a\nmethod: {sft: }\nmodel: {path: m}\ndata: {train: t}\ntraining: {output_dir: o}\n"
      "memory:\n");
  EXPECT_THAT(job.errors, IsEmpty());
  EXPECT_TRUE(job.spec.memory().gradient_checkpointing());
}

// kGood with `from` replaced by `to`.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

struct BadFile {
  const char* name;
  std::string text;
  std::string error;
};

class BadFileTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFileTest, HasThisOneError) {
  EXPECT_THAT(parse(GetParam().text).errors, ElementsAre(GetParam().error));
}

const BadFile kBadFiles[] = {
    {"Misspelt", edited("learning_rate", "learning_rte"),
     "job.yaml:10:3: training.learning_rte is not a field; did you mean learning_rate?"},
    {"MisspeltSection", edited("parallelism", "paralelism"),
     "job.yaml:14:1: paralelism is not a field; did you mean parallelism?"},
    {"NothingNear", edited("num_processes", "zzz"),
     "job.yaml:14:16: parallelism.zzz is not a field; parallelism has: num_processes, "
     "dp_replicate_size, dp_shard_size, cp_size, cp_strategy, min_num_processes"},
    {"MethodFieldUnderTraining", edited("max_steps: 200", "packing: true"),
     "job.yaml:9:3: training.packing stands under method.sft"},
    {"TrainingFieldUnderMethod", edited("packing: true", "learning_rate: 1"),
     "job.yaml:3:27: method.sft.learning_rate stands under training"},
    {"CheckpointingUnderTraining", edited("max_steps: 200", "gradient_checkpointing: true"),
     "job.yaml:9:3: training.gradient_checkpointing stands under memory"},
    {"TopFieldInSection", edited("max_steps: 200", "name: x"),
     "job.yaml:9:3: training.name stands at the top of the file, as name"},
    {"Bf16", edited("max_steps: 200", "bf16: true"),
     "job.yaml:9:3: training.bf16 is not a field: use model.dtype: bfloat16"},
    {"Liger", edited("packing: true", "use_liger_kernel: true"),
     "job.yaml:3:27: method.sft.use_liger_kernel is not a field: the fused head is always on; "
     "remove it"},
    {"Peft", edited("parallelism: {", "use_peft: true\nparallelism: {"),
     "job.yaml:14:1: use_peft is not a field: use a section peft"},
    {"WrongInteger", edited("200", "many"),
     "job.yaml:9:14: training.max_steps is many, must be a whole number"},
    {"QuotedInteger", edited("200", "\"200\""),
     "job.yaml:9:14: training.max_steps is the text \"200\", must be a whole number"},
    {"FractionalInteger", edited("200", "2.5"),
     "job.yaml:9:14: training.max_steps is 2.5, must be a whole number"},
    {"HugeInteger", edited("200", "99999999999"),
     "job.yaml:9:14: training.max_steps is 99999999999, must be a whole number that fits 32 bits"},
    {"ListForNumber", edited("200", "[1, 2]"),
     "job.yaml:9:14: training.max_steps is a list, must be a whole number"},
    {"NumberInAList", edited("max_steps: 200", "max_steps: 200\n  profile_steps: [3, x]"),
     "job.yaml:10:22: training.profile_steps[1] is x, must be a whole number, or a list of them"},
    {"SectionForNumber", edited("200", "{a: 1}"),
     "job.yaml:9:14: training.max_steps is a section, must be a whole number"},
    {"NoValue", edited(" 200", ""),
     "job.yaml:9:3: training.max_steps is empty, must be a whole number; without the line it is "
     "-1"},
    {"NullIsNotNoLimit", edited("512", "null"),
     "job.yaml:3:10: method.sft.max_length is empty, must be a whole number; without the line it "
     "is 1024"},
    {"WrongBool", edited("false", "nope"),
     "job.yaml:11:20: training.shuffle_dataset is nope, must be true or false"},
    {"WrongDouble", edited("1.0e-3", "1.0e-3x"),
     "job.yaml:10:18: training.learning_rate is 1.0e-3x, must be a number"},
    {"NotFinite", edited("1.0e-3", "nan"),
     "job.yaml:10:3: training.learning_rate is nan, must be a finite number"},
    {"WrongDuration", edited("1.5", "soon"),
     "job.yaml:15:28: resources.hang_timeout is soon, must be a number of seconds, as in 600 or "
     "\"600s\""},
    {"ScalarForSection", edited("{ num_processes: 2 }", "2"),
     "job.yaml:14:14: parallelism is 2, must be a section with fields: num_processes, "
     "dp_replicate_size, dp_shard_size, cp_size, cp_strategy, min_num_processes"},
    {"GivenTwice", edited("max_steps: 200", "max_steps: 200\n  max_steps: 300"),
     "job.yaml:10:3: training.max_steps is given twice, first on line 9"},
    {"BrokenRule", edited("1.0e-3", "-1"),
     "job.yaml:10:3: training.learning_rate is -1, must be at least 0"},
    {"RuleOfAnAbsentField", edited("  output_dir: out\n", ""),
     "job.yaml:8:1: training.output_dir is missing"},
    {"MissingSection", edited("data:\n  train: ../corpus.jsonl\n  eval: /held.jsonl\n", ""),
     "job.yaml: data is missing"},
    {"EmptyPath", edited("/held.jsonl", ""),
     "job.yaml:7:3: data.eval is empty, must be a text or a list of texts; without the line it is "
     "unset"},
    {"PathInAList", edited("/held.jsonl", "[a, {b: c}]"),
     "job.yaml:7:13: data.eval[1] is a section, must be a text or a list of texts"},
    {"WeightInAList",
     edited("train: ../corpus.jsonl", "mixture: [{path: a}, {path: b, weight: 0}]"),
     "job.yaml:6:34: data.mixture[1].weight is 0, must be above 0"},
    {"NoMethod", edited("sft: { max_length: 512, packing: true, packing_strategy: bfd }", ""),
     "job.yaml:2:1: method is empty, must hold exactly one training method: sft, dpo, kto, "
     "reward, gkd, grpo, rloo, online_dpo or ppo"},
    {"Mesh", edited("num_processes: 2", "num_processes: 4, dp_shard_size: 3"),
     "job.yaml:14:16: parallelism.num_processes is 4, must be dp_replicate_size * dp_shard_size * "
     "cp_size = 1 * 3 * 1 = 3"},
    {"Syntax", edited("max_steps: 200", "max_steps: 200: 3"), "job.yaml:9:17: illegal map value"},
    {"Unclosed", "name: [1", "job.yaml:1:1: end of sequence flow not found"},
    {"Empty", "", "job.yaml: the file is empty"},
    {"OnlyComments", "# nothing\n", "job.yaml: the file is empty"},
    {"NotASection", "just text",
     "job.yaml:1:1: the file is just text, must be a section with fields: name, method, model, "
     "data, training, memory, parallelism, resources, peft, reward_funcs, generation, project"},
    {"TwoDocuments", "name: a\n---\nname: b\n", "job.yaml:3:1: the file must hold one document"},
    {"Alias", "name: &a x\nmodel: *a\n",
     "job.yaml:1:7: anchors and aliases are not allowed in a job file"},
    {"Tag", "name: !!python/object x\n", "job.yaml:1:7: tags are not allowed in a job file"},
    {"KeyIsAList", "? [a]\n: b\n", "job.yaml:1:3: a field's name must be a text"},
    {"ControlCharacter",
     std::string("name: a\nmod\x04"
                 "el: b\n"),
     "job.yaml:2:4: the file holds a control character"},
    {"NotUtf8", "name: \xff\n", "job.yaml:1:7: the file is not valid UTF-8"},
    {"TooDeep", std::string(20, '[') + std::string(20, ']'),
     "job.yaml:1:17: the file is nested more than 16 levels deep"},
};

INSTANTIATE_TEST_SUITE_P(Files, BadFileTest, ::testing::ValuesIn(kBadFiles),
                         [](const auto& info) { return info.param.name; });

TEST(JobFileTest, ReportsAllMistakesInFileOrder) {
  std::string text = edited("200", "x");
  text.replace(text.find("learning_rate"), 13, "learning_rte");
  text.replace(text.find("dtype"), 5, "bf16_");
  EXPECT_THAT(parse(text).errors,
              ElementsAre(HasSubstr("job.yaml:4:26: "), HasSubstr("job.yaml:9:14: "),
                          HasSubstr("job.yaml:10:3: ")));
}

TEST(JobFileTest, BoundsTheNumberOfErrors) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "zz" + std::to_string(i) + ": 1\n";
  const JobFile job = parse(text);
  ASSERT_THAT(job.errors, SizeIs(kMaxJobFileErrors + 1));
  EXPECT_EQ(job.errors.back(), "job.yaml: 80 more errors");
}

TEST(JobFileTest, BoundsTheNumberOfValues) {
  std::string text = "a: [";
  for (int i = 0; i < 20000; ++i) text += "1,";
  EXPECT_THAT(parse(text + "]").errors, ElementsAre(HasSubstr("more than 10000 values")));
}

TEST(JobFileTest, TwoMembersOfAOneofNameEachOther) {
  // JobSpec has one method so far; any message with a oneof shows it.
  v1::TrainerCommand command;
  const FilledMessage filled =
      fill_from_yaml(parse_yaml("stop: {}\nsave_checkpoint: {}\n"), command);
  ASSERT_THAT(filled.errors, SizeIs(1));
  EXPECT_EQ(filled.errors[0].mark.line, 2);
  EXPECT_EQ(filled.errors[0].message,
            "the file holds stop and save_checkpoint, must hold exactly one");
}

// No mutation of a good file crashes the reader, and each gives a spec or an error.
TEST(JobFileTest, SurvivesMutations) {
  std::mt19937 rng(1);
  const std::string alphabet = "{}[]:,-#&*!|>'\"%@`?~ \n\t\\x0Aé=<";
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = kGood;
    for (int edits = 1 + static_cast<int>(rng() % 4); edits > 0 && !text.empty(); --edits) {
      const size_t at = rng() % text.size();
      switch (rng() % 3) {
        case 0:
          text[at] = alphabet[rng() % alphabet.size()];
          break;
        case 1:
          text.insert(at, 1, alphabet[rng() % alphabet.size()]);
          break;
        default:
          text.erase(at, 1 + rng() % 8);
      }
    }
    refused += parse(text).errors.empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

TEST(JobFileOnDiskTest, TakesPathsRelativeToTheFile) {
  TempDir dir;
  const JobFile job = read_job_file(dir.write("job.yaml", kGood));
  ASSERT_THAT(job.errors, IsEmpty());
  EXPECT_EQ(job.spec.model().path(), (dir.path() / "models/m").string());
}

TEST(JobFileOnDiskTest, RefusesWhatIsNoFile) {
  TempDir dir;
  const auto missing = dir.path() / "missing.yaml";
  EXPECT_THAT(read_job_file(missing).errors,
              ElementsAre(missing.string() + ": there is no such file"));
  EXPECT_THAT(read_job_file(dir.path()).errors,
              ElementsAre(dir.path().string() + ": is a directory, must be a YAML or JSON file"));
}

TEST(JobFileOnDiskTest, RefusesALargeFile) {
  TempDir dir;
  const auto path = dir.write("job.yaml", std::string(kMaxJobFileBytes + 1, ' '));
  EXPECT_THAT(
      read_job_file(path).errors,
      ElementsAre(path.string() + ": is larger than 1048576 bytes, too large for a job file"));
}

}  // namespace
}  // namespace tessera
