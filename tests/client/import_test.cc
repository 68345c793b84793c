#include "client/trl/import.h"

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/job_file.h"
#include "client/trl/datasets.h"
#include "client/trl/job_draft.h"
#include "client/trl/keys.h"
#include "tests/client/temp_dir.h"

namespace tessera::trl {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using Pairs = std::vector<std::pair<std::string, std::string>>;

class ImportTest : public ::testing::Test {
 protected:
  ImportTest() {
    std::filesystem::create_directories(dir_.path() / "model");
    std::filesystem::create_directories(dir_.path() / "data");
    for (const char* file : {"data/train.jsonl", "data/test.jsonl"}) dir_.write(file, "{}\n");
  }

  ImportOptions options(const std::string& config, const std::string& accelerate = "",
                        const std::string& method = "") const {
    ImportOptions options{.method = method,
                          .config = {"trl.yaml", config},
                          .accelerate = std::nullopt,
                          .directory = dir_.path(),
                          .model = "",
                          .train = {},
                          .eval = {},
                          .device = "",
                          .reward_server = ""};
    if (!accelerate.empty()) options.accelerate = ConfigFile{"accelerate.yaml", accelerate};
    return options;
  }
  // What every method needs, and `rest`.
  static std::string config(const std::string& rest) {
    return "model_name_or_path: ./model\ndataset_name: ./data\noutput_dir: out\n" + rest;
  }
  // The job of an import that succeeds.
  v1::JobSpec import(const ImportOptions& options) {
    const Imported imported = import_config(options);
    EXPECT_THAT(imported.errors, IsEmpty());
    text_ = imported.job_file;
    const JobFile job = parse_job_file(imported.job_file, "job.yaml", "/elsewhere");
    EXPECT_THAT(job.errors, IsEmpty()) << imported.job_file;
    return job.written;
  }
  v1::JobSpec import(const std::string& rest, const std::string& accelerate = "",
                     const std::string& method = "sft") {
    return import(options(config(rest), accelerate, method));
  }
  std::vector<std::string> errors(const std::string& rest, const std::string& accelerate = "",
                                  const std::string& method = "sft") {
    return import_config(options(config(rest), accelerate, method)).errors;
  }
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }

  TempDir dir_;
  std::string text_;
};

struct ListedKey {
  std::string section;
  std::string key;
};

std::vector<ListedKey> listed_keys() {
  std::vector<ListedKey> keys;
  std::ifstream file(TRL_KEYS);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    ListedKey key;
    if (!line.starts_with('#') && words >> key.section >> key.key) keys.push_back(key);
  }
  return keys;
}

TEST(ImportKeysTest, EveryKeyOfTrlAndAccelerateHasAFate) {
  const auto keys = listed_keys();
  ASSERT_THAT(keys, SizeIs(testing::Gt(1000)));
  for (const ListedKey& listed : keys) {
    if (listed.section == "accelerate") {
      EXPECT_NE(find_launch_key(listed.key), nullptr) << listed.key;
    } else if (listed.section != "datasets") {
      EXPECT_NE(find_key(listed.key, *find_method(listed.section)), nullptr)
          << listed.section << " " << listed.key;
    }
  }
}

TEST(ImportKeysTest, FieldsExistAndReasonsAreGiven) {
  for (const auto keys : {training_keys(), method_keys(), script_keys(), launch_keys()}) {
    for (const Key& key : keys) {
      if (key.fate == Fate::kNoted || key.fate == Fate::kRefused) {
        EXPECT_STRNE(key.why, "") << key.name;
      }
      if (key.fate != Fate::kField) continue;
      for (const MethodName& method : kMethods) {
        if ((key.methods & method.method) == 0) continue;
        std::string target = key.target;
        if (target.starts_with('%'))
          target = std::string("method.") + method.name + target.substr(1);
        EXPECT_NE(job_field(target), nullptr) << key.name << " -> " << target;
      }
    }
  }
}

// Whatever a key is set to, the outcome tells: another job, a comment or an error that names it.
class NoKeyIsDroppedTest : public ImportTest {
 protected:
  static std::string join(const Pairs& pairs) {
    std::string text;
    for (const auto& [key, value] : pairs) text += key + ": " + value + "\n";
    return text;
  }
  static Pairs with(Pairs pairs, const std::string& key, const std::string& value) {
    std::erase_if(pairs, [&](const auto& pair) { return pair.first == key; });
    pairs.emplace_back(key, value);
    return pairs;
  }
  static std::string outcome(const Imported& imported) {
    return imported.job_file + testing::PrintToString(imported.errors);
  }
};

TEST_F(NoKeyIsDroppedTest, OfTrl) {
  const Pairs base = {
      {"model_name_or_path", "./model"}, {"dataset_name", "./data"}, {"output_dir", "out"}};
  for (const ListedKey& listed : listed_keys()) {
    if (!find_method(listed.section)) continue;
    const auto run = [&](const Pairs& pairs) {
      return outcome(import_config(options(join(pairs), "", listed.section)));
    };
    const std::string without = run(base);
    for (const char* value : {"true", "7", "null", "[a, b]", "{a: b}"}) {
      const std::string with_key = run(with(base, listed.key, value));
      const bool is_told = with_key != without || with_key.find(listed.key) != std::string::npos;
      EXPECT_TRUE(is_told) << listed.section << " " << listed.key << ": " << value;
    }
  }
}

TEST_F(NoKeyIsDroppedTest, OfDataSets) {
  const std::string head = "model_name_or_path: ./model\ndatasets: [{path: ./data";
  const std::string without = outcome(import_config(options(head + "}]\n", "", "sft")));
  for (const ListedKey& listed : listed_keys()) {
    if (listed.section != "datasets" || listed.key == "path") continue;
    const std::string with_key =
        outcome(import_config(options(head + ", " + listed.key + ": 7}]\n", "", "sft")));
    EXPECT_NE(with_key, without) << listed.key;
    EXPECT_THAT(with_key, Not(HasSubstr("must be one of"))) << listed.key;
  }
}

TEST_F(NoKeyIsDroppedTest, OfAccelerate) {
  const std::string trl = config("");
  for (const ListedKey& listed : listed_keys()) {
    if (listed.section != "accelerate") continue;
    for (const char* type : {"FSDP", "DEEPSPEED", "MULTI_GPU"}) {
      const Pairs base = {{"distributed_type", type}, {"num_processes", "4"}};
      const auto run = [&](const Pairs& pairs) {
        return outcome(import_config(options(trl, join(pairs), "sft")));
      };
      const std::string without = run(base);
      for (const char* value : {"true", "7", "2", "[a]"}) {
        const std::string with_key = run(with(base, listed.key, value));
        const bool is_told = with_key != without || with_key.find(listed.key) != std::string::npos;
        EXPECT_TRUE(is_told) << type << " " << listed.key << ": " << value;
      }
    }
  }
}

TEST_F(ImportTest, Sft) {
  const v1::JobSpec job = import(
      "max_length: 2048\npacking: yes\npacking_strategy: wrapped\nassistant_only_loss: False\n"
      "learning_rate: 2e-4\nlr_scheduler_type: cosine_with_min_lr\n"
      "lr_scheduler_kwargs: '{\"min_lr_rate\": 0.1}'\nwarmup_steps: 0.03\nmax_steps: 1_000\n"
      "eval_strategy: \"steps\"\neval_steps: 50\nsave_total_limit: null\noptim: adamw_bnb_8bit\n"
      "gradient_checkpointing: false\nreport_to: [tensorboard]\nrun_name: my run/1\n"
      "ddp_timeout: 900\nseed: 7\nresume_from_checkpoint: true\nuse_cpu: true\n");
  EXPECT_EQ(job.name(), "my-run-1");
  EXPECT_EQ(job.method().sft().max_length(), 2048);
  EXPECT_TRUE(job.method().sft().packing());
  EXPECT_EQ(job.method().sft().packing_strategy(), "wrapped");
  EXPECT_EQ(job.model().path(), path("model"));
  EXPECT_EQ(job.model().dtype(), "bfloat16") << "TRL's default";
  EXPECT_THAT(job.data().train(), ElementsAre(path("data/train.jsonl")));
  EXPECT_THAT(job.data().eval(), ElementsAre(path("data/test.jsonl")));
  const v1::Training& training = job.training();
  EXPECT_EQ(training.learning_rate(), 2e-4);
  EXPECT_EQ(training.lr_scheduler_kwargs().min_lr_rate(), 0.1);
  EXPECT_EQ(training.max_steps(), 1000);
  EXPECT_EQ(training.logging_steps(), 10) << "TRL's default, not Tessera's";
  EXPECT_EQ(training.output_dir(), path("out"));
  EXPECT_EQ(training.report_to(), "tensorboard");
  EXPECT_EQ(training.resume_from_checkpoint(), "true");
  EXPECT_FALSE(training.has_save_total_limit());
  EXPECT_EQ(job.memory().optimizer_state_dtype(), "int8");
  EXPECT_FALSE(job.memory().gradient_checkpointing());
  EXPECT_EQ(job.resources().hang_timeout().seconds(), 900);
  EXPECT_EQ(job.resources().device(), "cpu");
  EXPECT_FALSE(job.has_peft());
}

TEST_F(ImportTest, Dpo) {
  const v1::JobSpec job = import(
      "loss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.2]\nbeta: 0.05\nmax_length: null\n"
      "precompute_ref_log_probs: true\npad_to_multiple_of: auto\nuse_peft: true\nlora_r: 8\n"
      "lora_target_modules: all-linear\nload_in_4bit: true\nuse_bnb_nested_quant: true\n",
      "", "dpo");
  const v1::Dpo& dpo = job.method().dpo();
  EXPECT_THAT(dpo.loss_type(), ElementsAre("sigmoid", "sft"));
  EXPECT_THAT(dpo.loss_weights(), ElementsAre(1.0, 0.2));
  EXPECT_EQ(dpo.beta(), 0.05);
  EXPECT_EQ(dpo.max_length(), 0) << "no truncation";
  EXPECT_TRUE(dpo.precompute_ref_log_probs());
  EXPECT_FALSE(dpo.has_pad_to_multiple_of());
  EXPECT_EQ(job.peft().lora_r(), 8);
  EXPECT_THAT(job.peft().lora_target_modules(), ElementsAre("all-linear"));
  EXPECT_EQ(job.peft().quantization(), "nf4");
  EXPECT_TRUE(job.peft().use_bnb_nested_quant());
}

TEST_F(ImportTest, Kto) {
  const v1::JobSpec job =
      import("desirable_weight: 1.5\nloss_type: apo_zero_unpaired\n", "", "kto");
  EXPECT_EQ(job.method().kto().desirable_weight(), 1.5);
  EXPECT_EQ(job.method().kto().loss_type(), "apo_zero_unpaired");
}

TEST_F(ImportTest, Reward) {
  const v1::JobSpec job = import("center_rewards_coefficient: 0.01\nbf16: false\n", "", "reward");
  EXPECT_EQ(job.method().reward().center_rewards_coefficient(), 0.01);
  EXPECT_EQ(job.model().dtype(), "float32");
}

TEST_F(ImportTest, Grpo) {
  ImportOptions grpo = options(
      config("num_generations: 4\nscale_rewards: false\nmax_completion_length: 64\n"
             "shuffle_dataset: false\nuse_vllm: true\nvllm_enable_sleep_mode: true\n"
             "generation_kwargs: {top_k: 5, stop: ['</a>']}\nds3_gather_for_generation: false\n"
             "reward_funcs: [think_format_reward, get_soft_overlong_punishment, my.lib.score]\n"
             "reward_weights: [1, 2, 3]\nper_device_train_batch_size: 4\n"),
      "", "grpo");
  grpo.reward_server = "127.0.0.1:50051";
  const v1::JobSpec job = import(grpo);
  EXPECT_EQ(job.method().grpo().num_generations(), 4);
  EXPECT_EQ(job.method().grpo().scale_rewards(), "none");
  EXPECT_EQ(job.method().grpo().top_k(), 5);
  EXPECT_FALSE(job.training().shuffle_dataset());
  EXPECT_TRUE(job.generation().enable_sleep_mode());
  EXPECT_EQ(job.generation().weights(), "layerwise");
  EXPECT_THAT(job.generation().stop_strings(), ElementsAre("</a>"));
  ASSERT_THAT(job.reward_funcs(), SizeIs(3));
  EXPECT_TRUE(job.reward_funcs(0).has_format());
  EXPECT_EQ(job.reward_funcs(1).length().soft_punish_cache(), 256);
  EXPECT_EQ(job.reward_funcs(2).name(), "score");
  EXPECT_EQ(job.reward_funcs(2).server().address(), "127.0.0.1:50051");
  EXPECT_THAT(text_, HasSubstr("use_vllm: true (the trainer makes completions itself"));
}

TEST_F(ImportTest, Rloo) {
  const v1::JobSpec job = import(
      "num_generations: 4\nper_device_train_batch_size: 4\nreward_clip_range: [-1, 1]\n"
      "reward_funcs: think_format_reward\n",
      "", "rloo");
  EXPECT_THAT(job.method().rloo().reward_clip_range(), ElementsAre(-1, 1));
  EXPECT_THAT(job.reward_funcs(), SizeIs(1));
}

TEST_F(ImportTest, PythonRewardsWantAServer) {
  EXPECT_THAT(errors("reward_funcs: [accuracy_reward]\n", "", "grpo"),
              Contains(AllOf(HasSubstr("accuracy_reward"), HasSubstr("--reward-server"))));
}

TEST_F(ImportTest, TheMethodIsThatOfTheKeys) {
  EXPECT_TRUE(import(options(config("packing: true\n"))).method().has_sft());
  EXPECT_TRUE(import(options(config("desirable_weight: 2\n"))).method().has_kto());
  EXPECT_THAT(import_config(options(config(""))).errors,
              ElementsAre(HasSubstr("may be the keys of sft, dpo, kto, reward, grpo, rloo")));
  EXPECT_THAT(import_config(options(config("packing: true\ndesirable_weight: 2\n"))).errors,
              ElementsAre(HasSubstr("no method has all of these keys")));
}

TEST_F(ImportTest, Fsdp1) {
  const v1::JobSpec job = import("",
                                 "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
                                 "fsdp_config:\n  fsdp_version: 1\n"
                                 "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"
                                 "  fsdp_offload_params: true\n");
  EXPECT_EQ(job.parallelism().num_processes(), 8);
  EXPECT_FALSE(job.parallelism().has_dp_replicate_size());
  EXPECT_EQ(job.memory().sharding(), "zero3");
  EXPECT_FALSE(job.memory().reshard_after_forward());
  EXPECT_EQ(job.memory().offload_param_device(), "cpu");
  EXPECT_EQ(job.memory().offload_optimizer_device(), "cpu");
}

TEST_F(ImportTest, HybridShardingHasACopyOnEachMachine) {
  const v1::JobSpec job = import("",
                                 "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\n"
                                 "fsdp_config: {fsdp_sharding_strategy: 4}\n");
  EXPECT_EQ(job.parallelism().dp_replicate_size(), 2);
}

TEST_F(ImportTest, Fsdp2WithContextParallelism) {
  const v1::JobSpec job =
      import("",
             "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2, "
             "fsdp_reshard_after_forward: true, fsdp_activation_checkpointing: true}\n"
             "parallelism_config:\n  parallelism_config_dp_shard_size: 4\n"
             "  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: alltoall\n"
             "  parallelism_config_tp_size: 1\n");
  EXPECT_EQ(job.parallelism().dp_shard_size(), 4);
  EXPECT_EQ(job.parallelism().cp_size(), 2);
  EXPECT_EQ(job.parallelism().cp_strategy(), "ring");
  EXPECT_TRUE(job.memory().gradient_checkpointing());
  EXPECT_FALSE(job.memory().has_reshard_after_forward());
}

TEST_F(ImportTest, DeepSpeedStages) {
  for (const char* stage : {"1", "2", "3"}) {
    const v1::JobSpec job =
        import("max_grad_norm: 0.5\n",
               std::string("distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
                           "  offload_optimizer_device: cpu\n  gradient_clipping: 0.5\n"
                           "  zero_stage: ") +
                   stage + "\n");
    EXPECT_EQ(job.memory().sharding(), std::string("zero") + stage);
    EXPECT_EQ(job.memory().offload_optimizer_device(), "cpu");
  }
  EXPECT_THAT(errors("",
                     "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
                     "  zero_stage: 3\n  gradient_clipping: 0.5\n"),
              ElementsAre(HasSubstr("accelerate.yaml:5:3: gradient_clipping is 0.5")));
}

TEST_F(ImportTest, DdpKeepsWholeCopies) {
  const v1::JobSpec job = import("", "distributed_type: MULTI_GPU\nnum_processes: 4\n");
  EXPECT_EQ(job.parallelism().dp_replicate_size(), 4);
  EXPECT_EQ(
      import("", "distributed_type: \"NO\"\nnum_processes: 8\n").parallelism().num_processes(), 1)
      << "accelerate starts one process";
}

TEST_F(ImportTest, LaunchersKeysMayStandInTrlsFile) {
  const v1::JobSpec job = import("accelerate_config: zero2\nnum_processes: 4\n");
  EXPECT_EQ(job.memory().sharding(), "zero2");
  EXPECT_EQ(job.parallelism().num_processes(), 4) << "it replaces the preset's 8";
  EXPECT_THAT(errors("accelerate_config: mine.yaml\n"),
              ElementsAre(HasSubstr("--accelerate FILE")));
}

TEST_F(ImportTest, NothingIsDownloaded) {
  const auto refused = import_config(options(
      "model_name_or_path: Qwen/Qwen2-0.5B\ndataset_name: trl-lib/Capybara\npacking: true\n"));
  EXPECT_THAT(refused.errors, Contains(AllOf(HasSubstr("trl.yaml:1:1"), HasSubstr("hf download"),
                                             HasSubstr("--model DIR"))));
  EXPECT_THAT(refused.errors,
              Contains(AllOf(HasSubstr("load_dataset('trl-lib/Capybara', split='train')"),
                             HasSubstr("--train train.jsonl"))));
}

TEST_F(ImportTest, FlagsStandInForTheHub) {
  ImportOptions given = options(
      "model_name_or_path: Qwen/Qwen2-0.5B\ndataset_name: trl-lib/Capybara\npacking: true\n"
      "eval_strategy: epoch\n");
  given.model = "model";
  given.train = {"a.jsonl", "b.jsonl"};
  given.eval = {"c.jsonl"};
  given.device = "cpu";
  const v1::JobSpec job = import(given);
  EXPECT_EQ(job.model().path(), path("model"));
  EXPECT_THAT(job.data().train(), ElementsAre(path("a.jsonl"), path("b.jsonl")));
  EXPECT_THAT(job.data().eval(), ElementsAre(path("c.jsonl")));
  EXPECT_EQ(job.resources().device(), "cpu");
  EXPECT_EQ(job.training().output_dir(), path("trainer_output")) << "transformers' default";
}

TEST_F(ImportTest, Mixtures) {
  const std::string head =
      "model_name_or_path: ./model\npacking: true\ndatasets:\n"
      "  - {path: json, data_files: x.jsonl";
  EXPECT_THAT(import(options(head + "}\n  - {path: ./data}\n")).data().train(),
              ElementsAre(path("x.jsonl"), path("data/train.jsonl")));
  const v1::JobSpec mixed =
      import(options(head + ", fraction: 0.75}\n  - {path: ./data, fraction: 0.25}\n"));
  ASSERT_THAT(mixed.data().mixture(), SizeIs(2));
  EXPECT_EQ(mixed.data().mixture(0).weight(), 0.75);
  EXPECT_THAT(import_config(options(head + "}\n  - {path: ./data, split: 'train[:10%]'}\n")).errors,
              ElementsAre(HasSubstr("is a part or a sum")));
  EXPECT_THAT(import_config(options(head + ", split: 'train[:9]'}\n")).errors,
              ElementsAre(HasSubstr("the split train[:9]")));
  EXPECT_THAT(import_config(options(head + ", subset: 3}\n")).errors,
              ElementsAre(HasSubstr("datasets.subset")));
}

TEST_F(ImportTest, RefusesByNameAndAllAtOnce) {
  const auto refused = errors(
      "fp16: true\npush_to_hub: true\noptim: lion\nreport_to: wandb\ntrust_remote_code: true\n"
      "no_such_key: 1\nauto_find_batch_size: true\nload_in_8bit: true\nfsdp: no_such_word\n"
      "mixed_precision: fp8\n");
  for (const char* key :
       {"trl.yaml:4:1: fp16 is true: float16 is not built", "push_to_hub", "optim is lion", "wandb",
        "trust_remote_code", "no_such_key is no key of TRL 1.16's sft", "memory.auto",
        "load_in_8bit", "no_such_word", "mixed_precision is fp8"}) {
    EXPECT_THAT(refused, Contains(HasSubstr(key)));
  }
}

TEST_F(ImportTest, RulesOfTheJobHold) {
  EXPECT_THAT(errors("packing: true\nmax_length: null\n"),
              ElementsAre(HasSubstr("method.sft.max_length is 0, must be above 0 with packing")));
  EXPECT_THAT(errors("learning_rate: -1\n"),
              ElementsAre(HasSubstr("training.learning_rate is -1")));
  EXPECT_THAT(errors("packing: maybe\n"), ElementsAre(HasSubstr("packing is maybe")));
  EXPECT_THAT(errors("seed: 1\nseed: 2\n"), ElementsAre(HasSubstr("seed is given twice")));
}

TEST_F(ImportTest, SecretsStayWhereTheyAre) {
  import("hub_token: hf_secret\nenv: {WANDB_API_KEY: other_secret}\n");
  EXPECT_THAT(text_, AllOf(HasSubstr("hub_token"), HasSubstr("env.WANDB_API_KEY")));
  EXPECT_THAT(text_, Not(HasSubstr("secret")));
}

TEST_F(ImportTest, NewlinesOfValuesStayInComments) {
  import("project: \"a\\nname: injected\"\n");
  EXPECT_THAT(text_, Not(HasSubstr("\nname: injected")));
}

TEST_F(ImportTest, FilesOfASplit) {
  EXPECT_THAT(find_split(dir_.path() / "data", "test").paths, ElementsAre(path("data/test.jsonl")));
  EXPECT_THAT(find_split(dir_.path() / "data", "validation").error, HasSubstr("validation"));
  std::filesystem::create_directories(dir_.path() / "plain");
  dir_.write("plain/a.parquet", "");
  EXPECT_THAT(find_split(dir_.path() / "plain", "train").paths, ElementsAre(path("plain")));
  dir_.write("plain/state.json", "{}");
  EXPECT_THAT(find_split(dir_.path() / "plain", "train").error, HasSubstr("save_to_disk"));
}

}  // namespace
}  // namespace tessera::trl
