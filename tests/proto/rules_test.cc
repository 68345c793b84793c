#include "proto/spec/rules.h"

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/time_util.h>
#include <gtest/gtest.h>

#include "tessera/v1/options.pb.h"

namespace tessera::spec {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::JobSpec minimal_spec() {
  v1::JobSpec spec;
  spec.set_name("demo");
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_data()->add_train("/data/t.jsonl");
  spec.mutable_training()->set_output_dir("/out");
  return spec;
}

std::vector<std::string> messages(const v1::JobSpec& spec) {
  std::vector<std::string> out;
  for (const Violation& violation : validate(spec)) out.push_back(violation.message);
  return out;
}

// Violations of a good spec after `change`, defaults filled in first.
std::vector<std::string> messages_after(const std::function<void(v1::JobSpec&)>& change) {
  v1::JobSpec spec = minimal_spec();
  change(spec);
  fill_defaults(spec);
  return messages(spec);
}

TEST(RulesTest, DefaultsSatisfyTheirOwnRules) {
  v1::JobSpec spec = minimal_spec();
  fill_defaults(spec);
  EXPECT_THAT(messages(spec), IsEmpty());
}

TEST(RulesTest, FillsDefaultsOfEveryType) {
  v1::JobSpec spec = minimal_spec();
  fill_defaults(spec);
  EXPECT_EQ(spec.method().sft().max_length(), 1024);
  EXPECT_EQ(spec.method().sft().packing_strategy(), "bfd");
  EXPECT_EQ(spec.training().learning_rate(), 2e-5);
  EXPECT_EQ(spec.training().max_steps(), -1);
  EXPECT_EQ(spec.training().seed(), 42);
  EXPECT_TRUE(spec.training().accelerator_config().has_split_batches());
  EXPECT_TRUE(spec.memory().gradient_checkpointing());
  EXPECT_EQ(spec.resources().hang_timeout().seconds(), 600);
  EXPECT_EQ(spec.parallelism().dp_shard_size(), 1);
}

TEST(RulesTest, KeepsWhatIsGivenAndWhatHasNoDefault) {
  v1::JobSpec spec = minimal_spec();
  spec.mutable_training()->set_shuffle_dataset(false);
  spec.mutable_training()->set_max_grad_norm(0);
  spec.mutable_resources()->mutable_hang_timeout()->set_seconds(5);
  fill_defaults(spec);
  EXPECT_FALSE(spec.training().shuffle_dataset());
  EXPECT_EQ(spec.training().max_grad_norm(), 0);
  EXPECT_EQ(spec.resources().hang_timeout().seconds(), 5);
  EXPECT_FALSE(spec.training().has_train_sampling_strategy());
  EXPECT_FALSE(spec.model().has_tokenizer());
  EXPECT_TRUE(spec.data().eval().empty());
  EXPECT_FALSE(spec.method().sft().has_eos_token());
}

TEST(RulesTest, FillingTwiceChangesNothing) {
  v1::JobSpec once = minimal_spec();
  fill_defaults(once);
  v1::JobSpec twice = once;
  fill_defaults(twice);
  EXPECT_EQ(once.SerializeAsString(), twice.SerializeAsString());
}

TEST(RulesTest, DoesNotInventRequiredSections) {
  v1::JobSpec spec;
  fill_defaults(spec);
  EXPECT_THAT(messages(spec),
              ElementsAre("name is missing", "method is missing", "model is missing",
                          "data is missing", "training is missing"));
}

struct BadField {
  const char* name;
  std::function<void(v1::JobSpec&)> change;
  std::string message;
};

class BadFieldTest : public ::testing::TestWithParam<BadField> {};

TEST_P(BadFieldTest, IsTheOnlyViolation) {
  EXPECT_THAT(messages_after(GetParam().change), ElementsAre(GetParam().message));
}

const BadField kBadFields[] = {
    {"Missing", [](auto& s) { s.mutable_model()->clear_path(); }, "model.path is missing"},
    {"BelowMin", [](auto& s) { s.mutable_training()->set_learning_rate(-1); },
     "training.learning_rate is -1, must be at least 0"},
    {"AtExclusiveMin", [](auto& s) { s.mutable_training()->set_num_train_epochs(0); },
     "training.num_train_epochs is 0, must be above 0"},
    {"AboveMax", [](auto& s) { s.mutable_training()->set_per_device_train_batch_size(65537); },
     "training.per_device_train_batch_size is 65537, must be at most 65536"},
    {"AtExclusiveMax", [](auto& s) { s.mutable_training()->set_adam_beta1(1); },
     "training.adam_beta1 is 1, must be below 1"},
    {"Nan",
     [](auto& s) {
       s.mutable_training()->set_learning_rate(std::numeric_limits<double>::quiet_NaN());
     },
     "training.learning_rate is nan, must be a finite number"},
    {"Infinite",
     [](auto& s) {
       s.mutable_training()->set_weight_decay(std::numeric_limits<double>::infinity());
     },
     "training.weight_decay is inf, must be a finite number"},
    {"NotOneOf", [](auto& s) { s.mutable_method()->mutable_sft()->set_packing_strategy("bdf"); },
     "method.sft.packing_strategy is \"bdf\", must be one of bfd, bfd_split, wrapped"},
    {"TooLong", [](auto& s) { s.set_name(std::string(64, 'a')); },
     "name is \"" + std::string(64, 'a') + "\", must be at most 63 characters long"},
    {"LongValueIsCut", [](auto& s) { s.mutable_model()->set_dtype(std::string(999, 'x')); },
     "model.dtype is \"" + std::string(64, 'x') + "...\", must be one of float32, bfloat16"},
    {"NameCharset", [](auto& s) { s.set_name("a b"); },
     "name is \"a b\", must hold only letters, digits, '-', '_' and '.'"},
    {"EmptyPath", [](auto& s) { s.mutable_data()->add_eval(""); },
     "data.eval is \"\", must be a path"},
    {"PathWithControl", [](auto& s) { s.mutable_data()->set_train(0, std::string("a\0b", 3)); },
     "data.train is a path with a control character, must hold none"},
    {"PathOfAList", [](auto& s) { s.mutable_data()->add_train(""); },
     "data.train[1] is \"\", must be a path"},
    {"TooLongAList",
     [](auto& s) {
       s.mutable_data()->mutable_train()->Reserve(1001);
       while (s.data().train_size() < 1001) s.mutable_data()->add_train("/t.jsonl");
     },
     "data.train is a list of 1001, must be at most 1000 long"},
    {"ProfiledStep", [](auto& s) { s.mutable_training()->add_profile_steps(0); },
     "training.profile_steps holds 0, must hold steps, which begin at 1"},
    {"NoDocuments", [](auto& s) { s.mutable_data()->clear_train(); }, "data.train is missing"},
    {"TrainAndMixture", [](auto& s) { s.mutable_data()->add_mixture()->add_path("/a.jsonl"); },
     "data.mixture is given beside data.train, must be the only one of the two"},
    {"MixtureWeight",
     [](auto& s) {
       s.mutable_data()->clear_train();
       v1::DataSource& source = *s.mutable_data()->add_mixture();
       source.add_path("/a.jsonl");
       source.set_weight(0);
     },
     "data.mixture[0].weight is 0, must be above 0"},
    {"MixtureWithoutPath",
     [](auto& s) {
       s.mutable_data()->clear_train();
       s.mutable_data()->add_mixture();
     },
     "data.mixture[0].path is missing"},
    {"DurationTooShort",
     [](auto& s) { s.mutable_resources()->mutable_hang_timeout()->set_nanos(500000000); },
     "resources.hang_timeout is 0.500s, must be at least 1s"},
    {"DurationInvalid",
     [](auto& s) { s.mutable_resources()->mutable_hang_timeout()->set_seconds(1LL << 60); },
     "resources.hang_timeout is out of range, must be a duration, as in \"600s\""},
    {"NoMethod", [](auto& s) { s.mutable_method()->clear_kind(); },
     "method is empty, must hold exactly one training method: sft, dpo, kto, reward, "
     "gkd, grpo, rloo, online_dpo or ppo"},
    {"PackingWithoutLength",
     [](auto& s) {
       s.mutable_method()->mutable_sft()->set_packing(true);
       s.mutable_method()->mutable_sft()->set_max_length(0);
     },
     "method.sft.max_length is 0, must be above 0 with packing: it is the row length"},
    {"NoSteps", [](auto& s) { s.mutable_training()->set_max_steps(0); },
     "training.max_steps is 0, must be above 0, or -1 to let num_train_epochs decide"},
    {"FractionOfAStep", [](auto& s) { s.mutable_training()->set_warmup_steps(2.5); },
     "training.warmup_steps is 2.5, must be a whole number of steps, or below 1 a share of them"},
    {"EvalWithoutData", [](auto& s) { s.mutable_training()->set_eval_strategy("steps"); },
     "training.eval_strategy is \"steps\", must be \"no\" when data.eval is absent"},
    {"FractionOfASave", [](auto& s) { s.mutable_training()->set_save_steps(2.5); },
     "training.save_steps is 2.5, must be a whole number of steps, or below 1 a share of them"},
    {"EvalOnStartWithoutData", [](auto& s) { s.mutable_training()->set_eval_on_start(true); },
     "training.eval_on_start is true, must be false when data.eval is absent"},
    {"BestModelWithoutEvaluations",
     [](auto& s) { s.mutable_training()->set_load_best_model_at_end(true); },
     "training.eval_strategy is \"no\", must be steps or epoch with load_best_model_at_end, "
     "early_stopping_patience, save_strategy best or lr_scheduler_type reduce_lr_on_plateau: they "
     "follow metric_for_best_model"},
    {"MetricOfAnotherMethod",
     [](auto& s) { s.mutable_training()->set_metric_for_best_model("eval_rewards/chosen"); },
     "training.metric_for_best_model is \"eval_rewards/chosen\", must be a metric of the method: "
     "loss, entropy, mean_token_accuracy, aux_loss"},
    {"BestModelOfOtherSteps",
     [](auto& s) {
       s.mutable_data()->add_eval("/data/e.jsonl");
       s.mutable_training()->set_load_best_model_at_end(true);
       s.mutable_training()->set_eval_strategy("epoch");
     },
     "training.load_best_model_at_end is true, must be false with save_strategy \"steps\" and "
     "eval_strategy \"epoch\": they must be the same, or save_strategy best"},
    {"BestModelBetweenEvaluations",
     [](auto& s) {
       s.mutable_data()->add_eval("/data/e.jsonl");
       s.mutable_training()->set_load_best_model_at_end(true);
       s.mutable_training()->set_eval_strategy("steps");
       s.mutable_training()->set_eval_steps(20);
       s.mutable_training()->set_save_steps(50);
     },
     "training.save_steps is 50, must be a multiple of eval_steps (20) with "
     "load_best_model_at_end"},
    {"KwargOfAnotherSchedule",
     [](auto& s) {
       s.mutable_training()->set_lr_scheduler_type("polynomial");
       s.mutable_training()->mutable_lr_scheduler_kwargs()->set_num_cycles(2);
     },
     "training.lr_scheduler_kwargs.num_cycles is given, must be absent with lr_scheduler_type "
     "\"polynomial\", which takes lr_end, power"},
    {"KwargOfNoSchedule",
     [](auto& s) { s.mutable_training()->mutable_lr_scheduler_kwargs()->set_power(2); },
     "training.lr_scheduler_kwargs.power is given, must be absent with lr_scheduler_type "
     "\"linear\", which takes none"},
    {"NoLowestRate",
     [](auto& s) { s.mutable_training()->set_lr_scheduler_type("cosine_with_min_lr"); },
     "training.lr_scheduler_kwargs has none of min_lr and min_lr_rate, must have one of them with "
     "lr_scheduler_type \"cosine_with_min_lr\""},
    {"TwoLowestRates",
     [](auto& s) {
       s.mutable_training()->set_lr_scheduler_type("cosine_warmup_with_min_lr");
       s.mutable_training()->mutable_lr_scheduler_kwargs()->set_min_lr(1e-6);
       s.mutable_training()->mutable_lr_scheduler_kwargs()->set_min_lr_rate(0.1);
     },
     "training.lr_scheduler_kwargs has both min_lr and min_lr_rate, must have one of them with "
     "lr_scheduler_type \"cosine_warmup_with_min_lr\""},
    {"EndAboveTheRate",
     [](auto& s) {
       s.mutable_training()->set_lr_scheduler_type("polynomial");
       s.mutable_training()->mutable_lr_scheduler_kwargs()->set_lr_end(0.5);
     },
     "training.learning_rate is 2e-05, must be above lr_scheduler_kwargs.lr_end (0.5)"},
    {"NoDecaySteps",
     [](auto& s) { s.mutable_training()->set_lr_scheduler_type("warmup_stable_decay"); },
     "training.lr_scheduler_kwargs.num_decay_steps is missing: lr_scheduler_type "
     "\"warmup_stable_decay\" needs it"},
    {"TokensAveragedByRank",
     [](auto& s) {
       s.mutable_training()->set_average_tokens_across_devices(false);
       s.mutable_parallelism()->set_num_processes(2);
     },
     "training.average_tokens_across_devices is false, must be true with parallelism.num_processes "
     "2: every label token of a step counts the same"},
    {"MeshProduct",
     [](auto& s) {
       s.mutable_parallelism()->set_num_processes(4);
       s.mutable_parallelism()->set_dp_shard_size(3);
     },
     "parallelism.num_processes is 4, must be dp_replicate_size * dp_shard_size * cp_size = "
     "1 * 3 * 1 = 3"},
    {"DeviceMemoryWithoutAUnitThatIsKnown",
     [](auto& s) { s.mutable_resources()->set_device_memory("12 apples"); },
     "resources.device_memory is \"12 apples\", must be a number with its unit, such as "
     "512MiB or 80GiB (alone it counts bytes), from 1MiB to 1024TiB"},
    {"DeviceMemoryWhoseUnitWasForgotten",
     [](auto& s) { s.mutable_resources()->set_device_memory("80"); },
     "resources.device_memory is \"80\", must be a number with its unit, such as 512MiB or 80GiB "
     "(alone it counts bytes), from 1MiB to 1024TiB"},
    {"MeshOfThreeAxes",
     [](auto& s) {
       s.mutable_parallelism()->set_num_processes(8);
       s.mutable_parallelism()->set_dp_replicate_size(2);
       s.mutable_parallelism()->set_dp_shard_size(3);
       s.mutable_parallelism()->set_cp_size(2);
     },
     "parallelism.num_processes is 8, must be dp_replicate_size * dp_shard_size * cp_size = "
     "2 * 3 * 2 = 12"},
};

INSTANTIATE_TEST_SUITE_P(Fields, BadFieldTest, ::testing::ValuesIn(kBadFields),
                         [](const auto& info) { return info.param.name; });

TEST(RulesTest, AdaptersThatAreNotAskedForStayAbsent) {
  v1::JobSpec spec = minimal_spec();
  fill_defaults(spec);
  EXPECT_FALSE(spec.has_peft());
  spec.mutable_peft();
  fill_defaults(spec);
  EXPECT_EQ(spec.peft().lora_r(), 16);
}

TEST(RulesTest, AxesThatDoNotDivideNameThemselves) {
  EXPECT_THAT(messages_after([](v1::JobSpec& spec) {
                spec.mutable_parallelism()->set_num_processes(3);
                spec.mutable_parallelism()->set_dp_replicate_size(2);
              }),
              ElementsAre("parallelism.num_processes is 3, must be a multiple of "
                          "dp_replicate_size * cp_size = 2 * 1 = 2"));
}

TEST(RulesTest, ShardSizeTakesWhatTheOtherAxesLeave) {
  v1::JobSpec spec = minimal_spec();
  spec.mutable_parallelism()->set_num_processes(6);
  spec.mutable_parallelism()->set_dp_replicate_size(2);
  fill_defaults(spec);
  EXPECT_EQ(spec.parallelism().dp_shard_size(), 3);
}

TEST(RulesTest, ReportsEveryViolationInFieldOrder) {
  EXPECT_THAT(messages_after([](v1::JobSpec& spec) {
                spec.clear_name();
                spec.mutable_training()->set_learning_rate(-1);
                spec.mutable_training()->set_save_steps(0);
              }),
              ElementsAre("name is missing", "training.learning_rate is -1, must be at least 0",
                          "training.save_steps is 0, must be above 0"));
}

TEST(RulesTest, ResolvesPathsAgainstTheBase) {
  v1::JobSpec spec = minimal_spec();
  spec.mutable_model()->set_path("../models/m/");
  spec.mutable_model()->set_tokenizer("./tok");
  spec.mutable_data()->set_train(0, "/abs/../t.jsonl");
  spec.mutable_training()->clear_output_dir();
  spec.mutable_training()->set_resume_from_checkpoint("latest");
  resolve_paths(spec, "/home/u/jobs");
  EXPECT_EQ(spec.model().path(), "/home/u/models/m");
  EXPECT_EQ(spec.model().tokenizer(), "/home/u/jobs/tok");
  EXPECT_THAT(spec.data().train(), ElementsAre("/t.jsonl"));
  EXPECT_TRUE(spec.data().eval().empty());
  EXPECT_EQ(spec.training().output_dir(), "");
  EXPECT_EQ(spec.training().resume_from_checkpoint(), "latest");
  spec.mutable_training()->set_resume_from_checkpoint("../out/checkpoint-5/");
  resolve_paths(spec, "/home/u/jobs");
  EXPECT_EQ(spec.training().resume_from_checkpoint(), "/home/u/out/checkpoint-5");
}

void visit_fields(const Descriptor& message, const std::function<void(const FieldDescriptor&)>& f) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    f(field);
    if (field.message_type() != nullptr && field.message_type()->file() == message.file()) {
      visit_fields(*field.message_type(), f);
    }
  }
}

TEST(RulesTest, EveryScalarFieldHasARuleOfItsOwn) {
  int visited = 0;
  visit_fields(*v1::JobSpec::descriptor(), [&](const FieldDescriptor& field) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return;
    ++visited;
    if (field.is_repeated()) {
      EXPECT_TRUE(field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
                  field.cpp_type() == FieldDescriptor::CPPTYPE_INT32 ||
                  field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE)
          << field.full_name() << ": job files have lists of texts and of numbers";
      EXPECT_TRUE(field.options().GetExtension(v1::rule).has_max()) << field.full_name();
      return;
    }
    const v1::Rule& rule = field.options().GetExtension(v1::rule);
    EXPECT_TRUE(field.options().HasExtension(v1::rule)) << field.full_name();
    EXPECT_TRUE(field.has_presence() || rule.required()) << field.full_name();
    EXPECT_TRUE(field.has_presence() || rule.default_().empty()) << field.full_name();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      // "": what the field's absence means its comment says.
      EXPECT_THAT((std::set<std::string>{"true", "false", ""}),
                  ::testing::Contains(rule.default_()))
          << field.full_name();
    } else if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
      EXPECT_TRUE(rule.has_min()) << field.full_name();
    } else {
      EXPECT_TRUE(rule.path() || rule.has_max() || rule.one_of_size() > 0)
          << field.full_name() << " is not bounded";
    }
  });
  EXPECT_GT(visited, 40);
}

}  // namespace
}  // namespace tessera::spec
