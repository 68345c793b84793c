// Training steps under every way to shard, offload and update weights, against the plain run on the
// same ranks; and the bytes that each takes.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "proto/spec/rules.h"
#include "tests/support/ranks.h"
#include "tests/worker/trainer/tiny_model.h"
#include "worker/memory/ledger.h"
#include "worker/trainer/step.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::fill_weights;
using testing::make_batch;
using testing::run_ranks;
using testing::tiny_config;

// The ledger wants to be there before the first tensor.
class InstalledLedger : public ::testing::Environment {
 public:
  void SetUp() override { MemoryLedger::install(); }
};
const ::testing::Environment* const kLedger =
    ::testing::AddGlobalTestEnvironment(new InstalledLedger);

struct Case {
  int world_size = 2;
  int microbatches = 1;  // of a step, on each rank
  bool tied = false;
  bool bfloat = false;
  // Sets the technique.
  void (*set)(v1::Memory& memory) = [](v1::Memory&) {};
};

v1::JobSpec spec_of(const Case& c) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  if (c.bfloat) spec.mutable_model()->set_dtype("bfloat16");
  spec.mutable_training()->set_learning_rate(0.01);
  spec.mutable_training()->set_weight_decay(0.1);
  spec.mutable_training()->set_max_grad_norm(0);
  c.set(*spec.mutable_memory());
  spec::fill_defaults(spec);
  return spec;
}

// One rank's model, optimizer and steps.
struct Rank {
  Rank(const Case& c, Collectives& group)
      : group(group),
        spec(spec_of(c)),
        objective(make_objective(spec, group)),
        trainable(build_model(spec, tiny_config(c.tied), group, at::kCPU)),
        optimizer(make_optimizer(spec, trainable, group.rank())),
        step({spec, *objective, trainable, *optimizer, group, at::kCPU}, [](Phase) {}) {
    fill_weights(trainable, group.rank());
    trainable.weights_changed();
  }

  StepMicrobatches microbatches(int64_t number, int count) const {
    StepMicrobatches all;
    all.step = number;
    all.num_labels.assign(count, 30 * group.size());
    all.batch = [this, number, count](int64_t i) {
      return make_batch(static_cast<int>((number * count + i) * group.size() + group.rank()) % 9);
    };
    all.learning_rate = 0.01;
    return all;
  }

  // Returns the norm of the gradients.
  double train(int64_t number, int count) {
    const StepMicrobatches all = microbatches(number, count);
    step.forward_backward(all);
    const double norm = step.norm();
    step.update(all, norm);
    return norm;
  }

  Collectives& group;
  v1::JobSpec spec;
  std::unique_ptr<Objective> objective;
  TrainableModel trainable;
  std::unique_ptr<AdamW> optimizer;
  TrainStep step;
};

struct Trained {
  std::map<std::string, at::Tensor> weights;  // by name, whole
  std::vector<double> norms;
};

constexpr int kSteps = 3;

Trained train(const Case& c) {
  at::set_num_threads(1);
  Trained trained;
  std::mutex mutex;
  run_ranks(Backend::kThreads, c.world_size, [&](Collectives& group) {
    Rank rank(c, group);
    std::vector<double> norms;
    for (int64_t i = 0; i < kSteps; ++i) norms.push_back(rank.train(i, c.microbatches));
    const std::lock_guard lock(mutex);
    trained.norms = norms;
    for (const auto& unit : rank.trainable.units) {
      for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(group.rank())) {
        at::Tensor& target = trained.weights[slice.entry->name];
        if (!target.defined()) target = at::full({slice.entry->numel}, NAN);
        target.narrow(0, slice.entry_begin, slice.numel)
            .copy_(unit->shard().narrow(0, slice.shard_begin, slice.numel));
      }
    }
  });
  return trained;
}

// `tolerance` 0: to the bit.
void expect_the_plain_run(const Case& c, double tolerance = 0) {
  Case plain = c;
  plain.set = [](v1::Memory&) {};
  const Trained expected = train(plain), found = train(c);
  for (int i = 0; i < kSteps; ++i)
    EXPECT_NEAR(found.norms[i] / expected.norms[i], 1, std::max(tolerance, 1e-12));
  for (const auto& [name, weights] : expected.weights) {
    const at::Tensor& other = found.weights.at(name);
    if (tolerance == 0) {
      EXPECT_TRUE(weights.equal(other)) << name;
    } else {
      EXPECT_LE((weights - other).abs().max().item<double>(), tolerance) << name;
    }
  }
}

void zero1(v1::Memory& m) { m.set_sharding("zero1"); }
void zero2(v1::Memory& m) { m.set_sharding("zero2"); }
void keep_last(v1::Memory& m) { m.set_reshard_keeps_last(2); }
void offload_params(v1::Memory& m) { m.set_offload_param_device("cpu"); }
void offload_states(v1::Memory& m) { m.set_offload_optimizer_device("cpu"); }
void in_backward(v1::Memory& m) { m.set_optimizer_in_backward(true); }
void offload_all(v1::Memory& m) {
  offload_params(m);
  offload_states(m);
  in_backward(m);
}
void zero1_with_all(v1::Memory& m) {
  zero1(m);
  offload_all(m);
}
void zero2_with_all(v1::Memory& m) {
  zero2(m);
  offload_all(m);
}

constexpr void (*kTechniques[])(v1::Memory&) = {zero1,          zero2,          keep_last,
                                                offload_params, offload_states, in_backward,
                                                offload_all,    zero1_with_all, zero2_with_all};

TEST(Techniques, GiveThePlainRunToTheBit) {
  for (const auto set : kTechniques) {
    for (const int world_size : {1, 2}) {
      expect_the_plain_run({.world_size = world_size, .set = set});
      expect_the_plain_run({.world_size = world_size, .bfloat = true, .set = set});
    }
    expect_the_plain_run({.world_size = 3, .tied = true, .set = set});
  }
}

// ZeRO-1 adds up a rank's microbatches before it adds up the ranks.
TEST(Techniques, GiveThePlainRunWhereGradientsAccumulate) {
  for (const auto set : kTechniques) {
    const bool reorders = set == zero1 || set == zero1_with_all;
    expect_the_plain_run({.microbatches = 3, .set = set}, reorders ? 1e-5 : 0);
    expect_the_plain_run({.world_size = 1, .microbatches = 3, .set = set});
  }
}

TEST(Techniques, RefuseToClipByANormThatIsNotKnownYet) {
  v1::JobSpec spec = spec_of({.set = in_backward});
  EXPECT_NO_THROW(refuse_combinations(spec));
  spec.mutable_training()->set_max_grad_norm(1);
  EXPECT_ANY_THROW(refuse_combinations(spec));
}

// Bytes of one rank while the second microbatch of a step is yet to come, by owner.
MemoryTotals bytes_in_a_step(const Case& c, Space space) {
  MemoryLedger& ledger = MemoryLedger::install();
  const auto before = ledger.snapshot(space);
  MemoryTotals bytes;
  run_ranks(Backend::kThreads, c.world_size, [&](Collectives& group) {
    Rank rank(c, group);
    rank.trainable.begin_backward(/*last_of_step=*/false);
    testing::train_on(rank.trainable, make_batch(group.rank()));
    group.barrier();
    if (group.rank() == 0) bytes = ledger.snapshot(space);
    group.barrier();
  });
  for (int owner = 0; owner < kNumOwners; ++owner) {
    bytes.current_by_owner[owner] -= before.current_by_owner[owner];
    bytes.current_by_owner[owner] /= c.world_size;
  }
  return bytes;
}

int64_t of(const MemoryTotals& bytes, Owner owner) {
  return bytes.current_by_owner[static_cast<int>(owner)];
}

// Elements of all flat vectors over two ranks.
int64_t num_elements(const Case& c) {
  const v1::JobSpec spec = spec_of(c);
  const std::unique_ptr<DecoderModel> model = make_layers(spec, tiny_config(c.tied));
  int64_t numel = 0;
  for (const FlatLayout& layout : trainable_layouts(*model, c.world_size)) numel += layout.numel;
  return numel;
}

// docs/memory.md has the formula.
TEST(Bytes, OfWeightsGradientsAndStates) {
  struct Row {
    void (*set)(v1::Memory&);
    bool bfloat;
    // Bytes an element of all ranks' vectors, times two ranks.
    int parameters, gradients, states, host;
  };
  const auto zero3 = [](v1::Memory&) {};
  for (const Row& row : std::vector<Row>{
           {zero3, false, 4, 4, 8, 0},
           {zero3, true, 4, 4, 8, 0},
           {zero2, false, 8, 4, 8, 0},
           {zero2, true, 4 + 4, 4, 8, 0},
           {zero1, false, 8, 8, 8, 0},
           {zero1, true, 4 + 4, 8, 8, 0},
           {offload_params, false, 0, 4, 8, 4},
           {offload_states, false, 4, 4, 0, 8},
           {offload_all, false, 0, 4, 0, 12},
           {[](v1::Memory& m) { m.set_optimizer_state_dtype("bfloat16"); }, false, 4, 4, 4, 0},
       }) {
    const Case c{.bfloat = row.bfloat, .set = row.set};
    const int64_t numel = num_elements(c);
    const MemoryTotals device = bytes_in_a_step(c, Space::kDevice);
    const MemoryTotals host = bytes_in_a_step(c, Space::kHost);
    EXPECT_EQ(of(device, Owner::kParameters), row.parameters * numel / 2);
    EXPECT_EQ(of(device, Owner::kGradients), row.gradients * numel / 2);
    EXPECT_EQ(of(device, Owner::kOptimizer), row.states * numel / 2);
    EXPECT_EQ(of(device, Owner::kCommunication), 0);
    EXPECT_EQ(of(host, Owner::kParameters) + of(host, Owner::kOptimizer), row.host * numel / 2);
  }
}

// With the update in backward no gradient is left when it ends.
TEST(Bytes, OfGradientsThatBackwardUsesUp) {
  MemoryLedger& ledger = MemoryLedger::install();
  const auto group = make_single_collectives();
  const int64_t before = of(ledger.snapshot(), Owner::kGradients);
  Rank plain({.world_size = 1}, *group);
  const StepMicrobatches all = plain.microbatches(0, 1);
  plain.step.forward_backward(all);
  EXPECT_EQ(of(ledger.snapshot(), Owner::kGradients) - before, 4 * num_elements({.world_size = 1}));
  plain.step.update(all, /*norm=*/1);
  Rank early({.world_size = 1, .set = in_backward}, *group);
  early.step.forward_backward(early.microbatches(0, 1));
  EXPECT_EQ(of(ledger.snapshot(), Owner::kGradients), before);
}

}  // namespace
}  // namespace tessera
