// The held-out documents' metrics.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/loader.h"
#include "worker/objectives/objective.h"
#include "worker/parallel/mesh.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/step.h"
#include "worker/trainer/stream_share.h"

namespace tessera {

class Evaluator {
 public:
  // All references outlive this, the data among them. `make`: makes the completions that the data
  // is of, anew for each evaluation, of a policy that took so many steps; collective.
  Evaluator(
      const Dataset& data, const LoaderOptions& options, const Objective& objective,
      const Mesh& mesh, const StreamShare& share, at::Device device,
      std::function<void(int step)> make = [](int) {});

  // Collective. The metrics as TRL averages them, one process and batches of all ranks' rows
  // assumed. `step` is that of the progress reports.
  v1::EvalMetrics evaluate(const TrainedModels& trained, const FrozenModels& frozen, int step,
                           Reporter& reporter) const;

 private:
  std::vector<MicrobatchSums> run(const TrainedModels& trained, const FrozenModels& frozen,
                                  int step, Reporter& reporter,
                                  v1::MetricsWindow& of_completions) const;

  const Objective& objective_;
  const Mesh& mesh_;
  const StreamShare& share_;
  at::Device device_;
  const Dataset& data_;
  std::unique_ptr<Loader> loader_;
  const std::function<void(int)> make_;
};

}  // namespace tessera
