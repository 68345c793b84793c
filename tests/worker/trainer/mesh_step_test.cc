// Training steps on meshes of every shape against one rank that has all of the data; and that no
// document of a shared stream feels another.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "proto/spec/rules.h"
#include "tests/support/ranks.h"
#include "tests/worker/trainer/tiny_model.h"
#include "worker/memory/ledger.h"
#include "worker/trainer/step.h"
#include "worker/trainer/stream_share.h"

namespace tessera {
namespace {

using testing::Backend;
using testing::fill_weights;
using testing::make_batch;
using testing::run_worlds;
using testing::tiny_config;

// The ledger wants to be there before the first tensor.
class InstalledLedger : public ::testing::Environment {
 public:
  void SetUp() override { MemoryLedger::install(); }
};
const ::testing::Environment* const kLedger =
    ::testing::AddGlobalTestEnvironment(new InstalledLedger);

constexpr int kSteps = 3;
constexpr int kMicrobatches = 4;  // of a step, over all data-parallel ranks

struct Case {
  MeshShape shape;
  std::string strategy = "allgather";
  void (*set)(v1::JobSpec& spec) = [](v1::JobSpec&) {};
};

v1::JobSpec spec_of(const Case& c) {
  v1::JobSpec spec;
  spec.mutable_method()->mutable_sft();
  spec.mutable_training()->set_learning_rate(0.01);
  spec.mutable_training()->set_weight_decay(0.1);
  spec.mutable_training()->set_max_grad_norm(0);
  spec.mutable_memory()->set_gradient_checkpointing(false);
  spec.mutable_parallelism()->set_cp_strategy(c.strategy);
  c.set(spec);
  spec::fill_defaults(spec);
  return spec;
}

ModelConfig config_of(const v1::JobSpec& spec) {
  ModelConfig config = tiny_config(/*tied=*/false);
  config.num_heads = 12;  // ulysses deals them out
  config.num_kv_heads = 12;
  config.head_dim = 2;
  config.hidden_dropout = spec.model().hidden_dropout();
  return config;
}

// Microbatch `number` of a step: one long document, or uneven ones.
Batch batch_of(int64_t step, int64_t number) {
  if (number % 2 == 0) return make_batch(static_cast<int>(step), {61});
  return make_batch(static_cast<int>(step + number), {5, 1, 30, 2, 9});
}

struct Trained {
  std::vector<double> losses, norms;          // of each step
  std::map<std::string, at::Tensor> weights;  // by name, whole
};

// One rank's model, optimizer and steps. A microbatch of the mesh has one of the data for each
// data-parallel rank, so that ranks take as many steps of fewer microbatches.
class Rank {
 public:
  Rank(const Case& c, const Mesh& mesh)
      : mesh_(mesh),
        spec_(spec_of(c)),
        config_(config_of(spec_)),
        share_(spec_, config_, mesh_),
        objective_(make_objective(spec_, mesh_.data)),
        trainable_(build_model(spec_, config_, mesh_, at::kCPU)),
        optimizer_(make_optimizer(spec_, trainable_, mesh_.shard.rank())),
        step_({spec_, *objective_, trainable_, *optimizer_, mesh_, at::kCPU}, [](Phase) {}) {
    fill_weights(trainable_, mesh_.shard.rank());
    trainable_.weights_changed();
  }

  void train(int64_t number, Trained& out) {
    const int64_t count = kMicrobatches / mesh_.data.size();
    StepMicrobatches all;
    all.step = number;
    int64_t num_labels = 0;
    for (int64_t i = 0; i < kMicrobatches; ++i) num_labels += batch_of(number, i).num_labels;
    all.num_labels.assign(count, num_labels / count);
    all.batch = [&](int64_t i) {
      return share_.of(batch_of(number, i * mesh_.data.size() + mesh_.data.rank()));
    };
    all.learning_rate = spec_.training().learning_rate();
    const MetricSumsList sums = step_.forward_backward(all);
    const MethodMetrics metrics(*objective_, /*aux_coef=*/0);
    v1::RankTime time;
    time.set_busy_seconds(1 + mesh_.world.rank());
    time.set_wait_seconds(10 - mesh_.world.rank());
    const TrainStep::Reduced reduced = step_.reduce(sums, {}, time);
    out.losses.push_back(metrics.step_loss(reduced.sums));
    expect_times_of_all(reduced.times);
    out.norms.push_back(step_.norm());
    step_.update(all, out.norms.back());
  }

  void expect_times_of_all(const std::vector<v1::RankTime>& times) const {
    ASSERT_EQ(std::ssize(times), mesh_.world.size() == 1 ? 0 : mesh_.world.size());
    for (int rank = 0; rank < std::ssize(times); ++rank) {
      EXPECT_EQ(times[rank].busy_seconds(), 1 + rank);
      EXPECT_EQ(times[rank].wait_seconds(), 10 - rank);
    }
  }

  // Puts this rank's shards in their places; they must be those of the other copies.
  void put_weights(Trained& out) const {
    for (const auto& unit : trainable_.units) {
      for (const FlatLayout::Slice& slice : unit->layout().slices_of_rank(mesh_.shard.rank())) {
        at::Tensor& target = out.weights[slice.entry->name];
        if (!target.defined()) target = at::full({slice.entry->numel}, NAN);
        const at::Tensor mine = unit->shard().narrow(0, slice.shard_begin, slice.numel);
        const at::Tensor place = target.narrow(0, slice.entry_begin, slice.numel);
        if (mesh_.replicate.rank() > 0) {
          EXPECT_TRUE(at::equal(place, mine)) << slice.entry->name << " differs on a copy";
        }
        place.copy_(mine);
      }
    }
  }

 private:
  const Mesh mesh_;
  const v1::JobSpec spec_;
  const ModelConfig config_;
  const StreamShare share_;
  std::unique_ptr<Objective> objective_;
  TrainableModel trainable_;
  std::unique_ptr<AdamW> optimizer_;
  TrainStep step_;
};

Trained train(const Case& c) {
  at::set_num_threads(1);
  Trained trained;
  std::mutex mutex;
  run_worlds(Backend::kThreads, c.shape.size(), [&](World& world) {
    const Mesh mesh(world, c.shape);
    Rank rank(c, mesh);
    Trained mine;
    for (int64_t i = 0; i < kSteps; ++i) rank.train(i, mine);
    for (int copy = 0; copy < c.shape.dp_replicate; ++copy) {
      if (mesh.replicate.rank() == copy) {
        const std::lock_guard lock(mutex);
        rank.put_weights(trained);
        trained.losses = mine.losses;
        trained.norms = mine.norms;
      }
      mesh.world.barrier();
    }
  });
  return trained;
}

void expect_same(const Trained& found, const Trained& expected, double tolerance) {
  for (int i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(found.losses[i] / expected.losses[i], 1, tolerance) << "loss of step " << i;
    EXPECT_NEAR(found.norms[i] / expected.norms[i], 1, tolerance) << "norm of step " << i;
  }
  for (const auto& [name, weights] : expected.weights) {
    // Adam divides small gradients by themselves: what rounds there moves weights by a share of the
    // rate.
    EXPECT_LE((weights - found.weights.at(name)).abs().max().item<double>(), 2e-3) << name;
  }
}

const std::vector<MeshShape> kShapes = {{1, 1, 2}, {1, 1, 3}, {1, 1, 4}, {1, 2, 2},
                                        {2, 1, 1}, {2, 2, 1}, {2, 1, 2}, {2, 2, 2}};

// Sums in other orders round by 2e-5, more or less with the instructions that a CPU has.
void expect_one_rank(const Case& like, double tolerance = 4e-5) {
  Case one = like;
  one.shape = {};
  const Trained expected = train(one);
  for (const MeshShape& shape : kShapes) {
    SCOPED_TRACE(std::to_string(shape.dp_replicate) + " x " + std::to_string(shape.dp_shard) +
                 " x " + std::to_string(shape.cp));
    Case c = like;
    c.shape = shape;
    expect_same(train(c), expected, tolerance);
  }
}

TEST(MeshStep, IsThatOfOneRank) {
  for (const char* strategy : {"allgather", "ring", "ulysses"}) {
    SCOPED_TRACE(strategy);
    expect_one_rank({.strategy = strategy});
  }
}

TEST(MeshStep, IsThatOfOneRankUnderEveryKindOfSharding) {
  for (const auto set :
       {+[](v1::JobSpec& s) { s.mutable_memory()->set_sharding("zero1"); },
        +[](v1::JobSpec& s) { s.mutable_memory()->set_sharding("zero2"); },
        +[](v1::JobSpec& s) { s.mutable_memory()->set_reshard_keeps_last(1); },
        +[](v1::JobSpec& s) { s.mutable_memory()->set_optimizer_in_backward(true); }}) {
    expect_one_rank({.set = set});
  }
}

TEST(MeshStep, IsThatOfOneRankWithRecompute) {
  for (const auto set : {+[](v1::JobSpec& s) {
                           s.mutable_memory()->set_gradient_checkpointing(true);
                           s.mutable_memory()->set_gradient_checkpointing_policy("attention");
                         },
                         +[](v1::JobSpec& s) {
                           s.mutable_memory()->set_gradient_checkpointing(true);
                           s.mutable_memory()->set_gradient_checkpointing_policy("full");
                           s.mutable_memory()->set_mlp_tile_tokens(7);
                         },
                         +[](v1::JobSpec& s) {
                           s.mutable_memory()->set_activation_offloading(true);
                           s.mutable_memory()->set_activation_offloading_min_bytes(0);
                         }}) {
    expect_one_rank({.set = set});
  }
}

// What is drawn is named by the place in the data and in the stream: the cp axis changes nothing.
// Small steps: AdamW makes whole ones of gradients that nearly cancel.
TEST(MeshStep, DrawsAreThoseOfTheWholeStream) {
  for (const auto set : {+[](v1::JobSpec& s) {
                           s.mutable_training()->set_learning_rate(1e-4);
                           s.mutable_model()->set_hidden_dropout(0.3);
                         },
                         +[](v1::JobSpec& s) {
                           s.mutable_training()->set_learning_rate(1e-4);
                           s.mutable_model()->set_hidden_dropout(0.3);
                           s.mutable_memory()->set_gradient_checkpointing(true);
                         },
                         +[](v1::JobSpec& s) {
                           s.mutable_training()->set_learning_rate(1e-4);
                           s.mutable_training()->set_neftune_noise_alpha(5);
                         },
                         +[](v1::JobSpec& s) {
                           s.mutable_training()->set_learning_rate(1e-4);
                           s.mutable_peft()->set_lora_dropout(0.3);
                           s.mutable_peft()->add_lora_target_modules("all-linear");
                         }}) {
    for (const int dp : {1, 2}) {
      const Trained expected = train({.shape = {1, dp, 1}, .set = set});
      for (const int cp : {2, 3}) {
        SCOPED_TRACE(std::to_string(dp) + " x " + std::to_string(cp));
        expect_same(train({.shape = {1, dp, cp}, .set = set}), expected, 1e-4);
      }
    }
  }
}

// The log-probabilities of a stream's labels, from the parts of all ranks.
at::Tensor logprobs_of(const Batch& batch, int cp, const std::string& strategy) {
  at::Tensor all = at::full({batch.tokens_T.size(0) + 2 * cp}, NAN);
  std::mutex mutex;
  run_worlds(Backend::kThreads, cp, [&](World& world) {
    const c10::AutoGradMode no_grad(false);
    const Mesh mesh(world, {1, 1, cp});
    const v1::JobSpec spec = spec_of({.strategy = strategy});
    const ModelConfig config = config_of(spec);
    const StreamShare share(spec, config, mesh);
    TrainableModel trainable = build_model(spec, config, mesh, at::kCPU);
    fill_weights(trainable, mesh.shard.rank());
    trainable.weights_changed();
    const Batch mine = share.of(batch);
    const at::Tensor logprobs_T =
        trainable.model->head(trainable.model->forward(mine), mine).logprobs_T;
    trainable.finish_backward();
    const std::lock_guard lock(mutex);
    if (!mine.documents.part) {
      all.narrow(0, 0, logprobs_T.size(0)).copy_(logprobs_T);
      return;
    }
    const StreamPart& part = *mine.documents.part;
    for (const int which : {0, 1}) {
      all.narrow(0, part.begin(which), part.chunk_tokens)
          .copy_(logprobs_T.narrow(0, which * part.chunk_tokens, part.chunk_tokens));
    }
  });
  return all.narrow(0, 0, batch.tokens_T.size(0));
}

// Documents whose log-probabilities change when the tokens of document `changed` do.
std::vector<int64_t> documents_that_feel(int64_t changed, Batch batch, int cp,
                                         const std::string& strategy,
                                         const std::vector<int64_t>& lengths) {
  const at::Tensor before = logprobs_of(batch, cp, strategy);
  int64_t begin = 0;
  for (int64_t s = 0; s < changed; ++s) begin += lengths[s];
  batch.tokens_T = batch.tokens_T.clone();
  at::Tensor tokens = batch.tokens_T.narrow(0, begin, lengths[changed]);
  tokens.copy_((tokens * 3 + 5) % 37);
  const at::Tensor after = logprobs_of(batch, cp, strategy);
  std::vector<int64_t> felt;
  int64_t first = 0;
  for (int64_t s = 0; s < std::ssize(lengths); ++s) {
    if (!at::equal(before.narrow(0, first, lengths[s]), after.narrow(0, first, lengths[s])))
      felt.push_back(s);
    first += lengths[s];
  }
  return felt;
}

TEST(Contamination, ADocumentChangesNoOther) {
  const std::vector<int64_t> lengths = {9, 30, 4, 21};
  for (const char* strategy : {"allgather", "ring", "ulysses"}) {
    for (const int cp : {1, 2, 3, 4}) {
      for (int64_t changed = 0; changed < std::ssize(lengths); ++changed) {
        SCOPED_TRACE(std::string(strategy) + " " + std::to_string(cp));
        EXPECT_EQ(documents_that_feel(changed, make_batch(1, lengths), cp, strategy, lengths),
                  std::vector<int64_t>{changed});
      }
    }
  }
}

// As where a framework forgets the boundaries of what is packed: the check above sees it.
TEST(Contamination, IsSeenWhereBoundariesAreDropped) {
  const std::vector<int64_t> lengths = {9, 30, 4, 21};
  for (const char* strategy : {"allgather", "ring", "ulysses"}) {
    for (const int cp : {1, 2, 4}) {
      Batch batch = make_batch(1, lengths);
      batch.documents.cu_seqlens = {0, batch.documents.cu_seqlens.back()};
      EXPECT_EQ(documents_that_feel(1, batch, cp, strategy, lengths),
                (std::vector<int64_t>{1, 2, 3}));
    }
  }
}

}  // namespace
}  // namespace tessera
