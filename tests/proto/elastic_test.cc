#include "proto/spec/elastic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/spec/rules.h"

namespace tessera::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::JobSpec elastic(int most, int least) {
  v1::JobSpec spec;
  spec.set_name("demo");
  spec.mutable_method()->mutable_sft();
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_data()->add_train("/data/t.jsonl");
  spec.mutable_training()->set_output_dir("/out");
  spec.mutable_parallelism()->set_num_processes(most);
  spec.mutable_parallelism()->set_min_num_processes(least);
  return spec;
}

v1::JobSpec filled(v1::JobSpec spec) {
  fill_defaults(spec);
  return spec;
}

TEST(ElasticTest, CountsAreDivisors) {
  EXPECT_THAT(process_counts(filled(elastic(12, 1))), ElementsAre(12, 6, 4, 3, 2, 1));
  EXPECT_THAT(process_counts(filled(elastic(12, 3))), ElementsAre(12, 6, 4, 3));
  EXPECT_THAT(process_counts(filled(elastic(4, 4))), ElementsAre(4));
  v1::JobSpec rigid = elastic(4, 1);
  rigid.mutable_parallelism()->clear_min_num_processes();
  EXPECT_THAT(process_counts(filled(rigid)), ElementsAre(4));
}

TEST(ElasticTest, ContextParallelRanksStayTogether) {
  v1::JobSpec spec = elastic(8, 1);
  spec.mutable_parallelism()->set_cp_size(2);
  EXPECT_THAT(process_counts(filled(spec)), ElementsAre(8, 4, 2));
}

TEST(ElasticTest, AStepTakesTheSameRows) {
  v1::JobSpec spec = elastic(8, 2);
  spec.mutable_parallelism()->set_dp_replicate_size(2);
  spec.mutable_training()->set_gradient_accumulation_steps(3);
  spec = filled(spec);
  const v1::JobSpec four = with_processes(spec, 4);
  EXPECT_EQ(four.parallelism().num_processes(), 4);
  EXPECT_EQ(four.parallelism().dp_shard_size(), 4) << "shards stay, copies go";
  EXPECT_EQ(four.parallelism().dp_replicate_size(), 1);
  EXPECT_EQ(four.training().gradient_accumulation_steps(), 6);
  EXPECT_THAT(validate(four), IsEmpty());
  const v1::JobSpec two = with_processes(spec, 2);
  EXPECT_EQ(two.parallelism().dp_shard_size(), 2);
  EXPECT_EQ(two.training().gradient_accumulation_steps(), 12);
}

TEST(ElasticTest, WithSplitBatchesTheMicrobatchIsDealt) {
  v1::JobSpec spec = elastic(4, 2);
  spec.mutable_training()->mutable_accelerator_config()->set_split_batches(true);
  spec.mutable_training()->set_per_device_train_batch_size(4);
  const v1::JobSpec two = with_processes(filled(spec), 2);
  EXPECT_EQ(two.training().gradient_accumulation_steps(), 1);
}

TEST(ElasticTest, GenerationsKeepTheirRows) {
  v1::JobSpec spec = elastic(4, 2);
  v1::Grpo& grpo = *spec.mutable_method()->mutable_grpo();
  grpo.set_num_generations(4);
  grpo.set_steps_per_generation(2);
  const v1::JobSpec two = with_processes(filled(spec), 2);
  EXPECT_EQ(two.method().grpo().steps_per_generation(), 4);
  EXPECT_EQ(two.training().gradient_accumulation_steps(), 2);
}

TEST(ElasticTest, RefusesWhatLeavesNoChoice) {
  const auto violations = validate(filled(elastic(5, 2)));
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].field, "parallelism.min_num_processes");
  EXPECT_THAT(violations[0].message, HasSubstr("a multiple of cp_size = 1 that divides 5"));
  EXPECT_THAT(validate(filled(elastic(2, 4)))[0].message, HasSubstr("must be at most"));
  EXPECT_THAT(validate(filled(elastic(5, 1))), IsEmpty());
  v1::JobSpec spec = elastic(1, 1);
  spec.set_project("two words");
  EXPECT_EQ(validate(filled(spec))[0].field, "project");
}

}  // namespace
}  // namespace tessera::spec
