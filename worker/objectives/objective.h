// What a method minimises, and what it measures on the way. A method reads nothing of a model but
// what the fused head gives, so that no [T, V] logits exist.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "proto/spec/method_metrics.h"
#include "tessera/v1/job.pb.h"
#include "worker/batch.h"
#include "worker/model/decoder.h"
#include "worker/objectives/metric_sums.h"
#include "worker/parallel/collectives.h"

namespace tessera {

// The models of a job.
struct Models {
  DecoderModel& policy;
  // Frozen. Null where the job has none in memory.
  DecoderModel* reference = nullptr;
  DecoderModel* teacher = nullptr;
  DecoderModel* value = nullptr;  // trained beside the policy; null: the method has none
};

// What a microbatch is to its step. An evaluation's batch is a step of its own.
struct StepShare {
  int64_t num_labels = 1;             // of the whole step, over ranks and microbatches
  int64_t num_microbatch_labels = 1;  // of this microbatch, over ranks
  int64_t num_microbatches = 1;       // of the step
  int64_t epoch = 0;                  // passes over the data that are behind it
  // How the policy runs forward. Its aux_loss_weight is divided by the microbatches already, and is
  // for one forward of the microbatch only.
  ForwardOptions forward;
  ForwardOptions value_forward;  // and how the value model does
};

struct ObjectiveOutput {
  // Scalar. Its gradients, summed over all ranks and the step's microbatches, are the step's: it is
  // divided by what the method takes its mean over.
  at::Tensor loss;
  // float64 [Objective::metrics(), 2]: sum and count of each on this rank.
  at::Tensor sums;
  double aux_loss = 0;  // DecoderModel::aux_loss() of the forward that is trained
};

class OnlineMethod;  // worker/objectives/online.h

class Objective {
 public:
  // What the loss of a step is the mean of.
  enum class Mean {
    kLabels,        // sums over sums: every label token counts the same
    kMicrobatches,  // the microbatches' means
  };
  Objective(const v1::JobSpec& spec, Mean mean);
  virtual ~Objective() = default;

  // Forward passes and loss of this rank's part of a microbatch, with autograd where that is
  // enabled. The loss must not depend on how rows are dealt to ranks. Collective: every rank runs
  // the same passes, also on a part without rows.
  virtual ObjectiveOutput run(const Models& models, const Batch& batch,
                              const StepShare& share) const = 0;
  // The same of the value model of a method that trains one, after the backward of run()'s loss: of
  // its own loss, which is another part of the step's, and of the rest of the metrics.
  virtual ObjectiveOutput run_value(const Models& models, const Batch& batch,
                                    const StepShare& share) const;

  // What it does with completions before it is trained on them; null where that is nothing.
  virtual const OnlineMethod* online() const { return nullptr; }

  Mean mean() const { return mean_; }
  // What run() measures, each named once: the loss first, whose sum over count is that of the
  // microbatch, then spec::metrics_of.
  const std::vector<spec::MethodMetric>& metrics() const { return metrics_; }

 private:
  const Mean mean_;
  std::vector<spec::MethodMetric> metrics_;
};

// The objective of the spec's method. `data` are the ranks that have rows of their own. Both
// outlive the objective.
std::unique_ptr<Objective> make_objective(const v1::JobSpec& spec, Collectives& data);

std::unique_ptr<Objective> make_sft(const v1::JobSpec& spec);
std::unique_ptr<Objective> make_dpo(const v1::JobSpec& spec, Collectives& data);
std::unique_ptr<Objective> make_kto(const v1::JobSpec& spec, Collectives& data);
std::unique_ptr<Objective> make_reward(const v1::JobSpec& spec, Collectives& data);
std::unique_ptr<Objective> make_gkd(const v1::JobSpec& spec);
std::unique_ptr<Objective> make_grpo(const v1::JobSpec& spec, Collectives& data);
std::unique_ptr<Objective> make_rloo(const v1::JobSpec& spec, Collectives& data);
std::unique_ptr<Objective> make_online_dpo(const v1::JobSpec& spec);
std::unique_ptr<Objective> make_ppo(const v1::JobSpec& spec, Collectives& data);

}  // namespace tessera
