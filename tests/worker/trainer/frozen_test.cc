// Which reference a job holds, and how one follows the policy.
#include "worker/trainer/frozen.h"

#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "proto/spec/rules.h"
#include "tests/support/ranks.h"
#include "tests/worker/trainer/tiny_model.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::fill_weights;
using testing::run_ranks;
using testing::tiny_config;

v1::JobSpec dpo_spec() {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_dpo();
  spec.mutable_model()->set_path("/models/policy");
  spec::fill_defaults(spec);
  return spec;
}

TEST(References, AreCopiesOfThePolicyWhereEveryWeightIsTrained) {
  const auto source = reference_in_memory(dpo_spec());
  ASSERT_TRUE(source);
  EXPECT_EQ(source->path, "/models/policy");
  EXPECT_EQ(source->field, "model.path");
  EXPECT_FALSE(source->has_adapter);
}

TEST(References, AreThePolicyWithoutAdaptersWhereItBeganAsThat) {
  v1::JobSpec spec = dpo_spec();
  spec.mutable_peft();
  EXPECT_FALSE(reference_in_memory(spec));
  spec.mutable_peft()->add_lora_modules_to_save("lm_head");
  ASSERT_TRUE(reference_in_memory(spec));
  EXPECT_FALSE(reference_in_memory(spec)->has_adapter);
  spec.mutable_peft()->set_adapter_path("/adapters/a");
  EXPECT_TRUE(reference_in_memory(spec)->has_adapter);
}

TEST(References, AreOtherModelsWhereTheJobNamesOne) {
  for (const bool of_dpo : {true, false}) {
    v1::JobSpec spec = dpo_spec();
    if (of_dpo) {
      spec.mutable_method()->mutable_dpo()->set_ref_model("/models/other");
    } else {
      spec.mutable_method()->mutable_kto()->set_ref_model("/models/other");
    }
    spec.mutable_peft();
    ASSERT_TRUE(reference_in_memory(spec));
    EXPECT_EQ(reference_in_memory(spec)->path, "/models/other");
    EXPECT_EQ(reference_in_memory(spec)->field,
              of_dpo ? "method.dpo.ref_model" : "method.kto.ref_model");
    EXPECT_FALSE(reference_to_precompute(spec));
  }
}

TEST(References, TakeNoMemoryWhereScoresAreMadeBefore) {
  v1::JobSpec spec = dpo_spec();
  v1::Dpo& dpo = *spec.mutable_method()->mutable_dpo();
  dpo.set_precompute_ref_log_probs(true);
  EXPECT_FALSE(reference_in_memory(spec) || reference_to_precompute(spec));
  dpo.set_ref_model("/models/other");
  EXPECT_FALSE(reference_in_memory(spec));
  ASSERT_TRUE(reference_to_precompute(spec));
  EXPECT_EQ(reference_to_precompute(spec)->path, "/models/other");
}

TEST(References, AreNoneOfOtherMethods) {
  v1::JobSpec spec = dpo_spec();
  spec.mutable_method()->mutable_sft();
  EXPECT_FALSE(reference_in_memory(spec) || reference_to_precompute(spec));
}

// A reference of the policy's layers, with nothing in it that is trained.
TrainableModel make_reference(const v1::JobSpec& spec, const ModelConfig& config,
                              Collectives& group) {
  auto layers = std::make_unique<DecoderModel>(config, /*head_chunk_tokens=*/8);
  for (const auto& layer : layers->layers()) {
    for (Parameter* parameter : layer->parameters()) parameter->trainable = false;
  }
  for (Parameter* parameter : layers->head_parameters()) parameter->trainable = false;
  return shard_model(spec, std::move(layers), group, at::kCPU, ModelRole::kFrozen);
}

TEST(References, MoveTowardsThePolicy) {
  for (const bool tied : {false, true}) {
    run_ranks(Backend::kThreads, 3, [&](Collectives& group) {
      const v1::JobSpec spec = dpo_spec();
      const ModelConfig config = tiny_config(tied);
      TrainableModel policy = build_model(spec, config, group, at::kCPU);
      fill_weights(policy, group.rank());
      TrainableModel reference = make_reference(spec, config, group);
      fill_weights(reference, group.rank());
      for (const auto& unit : reference.units) unit->shard().mul_(-1);
      sync_reference(policy, reference, /*share=*/0.25);
      for (size_t i = 0; i < policy.units.size(); ++i) {
        const ShardedUnit &of_policy = *policy.units[i], &of_reference = *reference.units[i];
        EXPECT_FALSE(of_reference.trainable());
        EXPECT_TRUE(at::allclose(of_reference.shard(), of_policy.shard() * -0.5));
      }
    });
  }
}

// Its weights are the owner reference's, and none of them stays gathered after a forward.
TEST(References, HaveAnOwnerOfTheirOwn) {
  MemoryLedger& ledger = MemoryLedger::install();
  run_ranks(Backend::kThreads, 2, [&](Collectives& group) {
    const v1::JobSpec spec = dpo_spec();
    TrainableModel reference = make_reference(spec, tiny_config(/*tied=*/false), group);
    int64_t bytes = 0;
    for (const auto& unit : reference.units) bytes += static_cast<int64_t>(unit->shard().nbytes());
    group.barrier();
    if (group.rank() == 0) {
      EXPECT_EQ(ledger.snapshot().current_by_owner[static_cast<size_t>(Owner::kReference)],
                2 * bytes);
    }
    const Batch batch = testing::make_batch(1);
    const c10::AutoGradMode no_grad(false);
    reference.model->head(reference.model->forward(batch), batch);
    group.barrier();
    for (const auto& unit : reference.units) {
      for (const FlatEntry& entry : unit->layout().entries)
        EXPECT_EQ(unit->parameter_of(entry).value.storage().nbytes(), 0) << entry.name;
    }
  });
}

}  // namespace
}  // namespace tessera
