// One step of training as a rank takes it: its microbatches forward and backward, the step's
// all-reduce, the norm of the gradients, the update. The trainer and a rehearsal run this same
// code.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "tessera/v1/telemetry.pb.h"
#include "worker/memory/attribution.h"
#include "worker/objectives/objective.h"
#include "worker/optim/adamw.h"
#include "worker/optim/gradient_norm.h"
#include "worker/trainer/metrics.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/trained_models.h"

namespace tessera {

// The optimizer of a job. `rank` is that in the mesh's shard group.
std::unique_ptr<AdamW> make_optimizer(const v1::JobSpec& spec, const TrainedModels& trained,
                                      int rank);

// The models beside those that are trained; null where the job has none.
struct FrozenModels {
  TrainableModel* reference = nullptr;
  TrainableModel* teacher = nullptr;
};
// What an objective is given of them.
Models models_of(const TrainedModels& trained, const FrozenModels& frozen);

// The microbatches of a step.
struct StepMicrobatches {
  int64_t step = 0;                             // from 0
  int64_t epoch = 0;                            // likewise
  std::vector<int64_t> num_labels;              // of each, over all ranks
  std::function<Batch(int64_t index)> batch;    // this rank's part of one
  double learning_rate = 0;                     // of the update
  std::function<void()> before_update = [] {};  // called once, before weights change

  int64_t size() const { return std::ssize(num_labels); }
};

class TrainStep {
 public:
  // All outlive the step.
  struct Parts {
    const v1::JobSpec& spec;
    const Objective& objective;
    TrainedModels trained;
    AdamW& optimizer;
    Mesh mesh;
    at::Device device;
    FrozenModels frozen = {};
  };
  // `on_phase` is told what begins.
  TrainStep(const Parts& parts, std::function<void(Phase)> on_phase)
      : parts_(parts), on_phase_(std::move(on_phase)) {}

  // Forward and backward of each, of the policy and then of the value model, so that activations of
  // one of them are there at a time; gradients add up in the units' shards. With
  // memory.optimizer_in_backward the last backward updates the weights: each unit's as soon as its
  // gradient is reduced, which is freed then. Collective, as all below.
  MetricSumsList forward_backward(const StepMicrobatches& microbatches);

  // What ranks tell each other at a step: 1 where it is so; as sums over ranks, counts.
  struct Signals {
    double stop = 0;             // was told to stop
    double save_checkpoint = 0;  // was told to save
    double saved = 0;            // wrote its part of the save that goes on
    double save_failed = 0;
  };
  // Sums over ranks, and what each rank's time went into.
  struct Reduced {
    std::vector<MicrobatchSums> sums;
    Signals signals;
    std::vector<v1::RankTime> times;  // by rank; none where there is one
  };
  // One small all-reduce. `time`: of this rank, since the last one.
  Reduced reduce(const MetricSumsList& sums, const Signals& signals,
                 const v1::RankTime& time = {}) const;

  // Of the gradients, over all ranks.
  double norm() const;
  // Clips, updates the weights, and frees the gradients; where forward_backward() has not done so.
  void update(const StepMicrobatches& microbatches, double norm) const;

 private:
  void begin_backward(const StepMicrobatches& microbatches, TrainableModel& model, bool last);
  void backward(const StepMicrobatches& microbatches, TrainableModel& model, const at::Tensor& loss,
                bool last);

  Parts parts_;
  std::function<void(Phase)> on_phase_;
  std::optional<GradientNorm> norm_;  // of this step's gradients, where backward updates weights
};

struct EvaluationParts {
  const Objective& objective;
  TrainedModels trained;
  Collectives& ranks;
  at::Device device;
  FrozenModels frozen = {};
  // Of a microbatch, over all ranks.
  std::function<int64_t(int64_t index)> num_labels = [](int64_t) { return 1; };
};
// Forward passes of `count` held-out microbatches, of which `batch_of` gives this rank's parts.
// Returns their sums over ranks. Collective.
std::vector<MicrobatchSums> evaluate_microbatches(const EvaluationParts& parts, int64_t count,
                                                  const std::function<Batch(int64_t)>& batch_of);

}  // namespace tessera
