// The held-out documents' metrics.
#pragma once

#include <memory>

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
  // All references outlive this, the data among them.
  Evaluator(const Dataset& data, const LoaderOptions& options, const Objective& objective,
            const Mesh& mesh, const StreamShare& share, at::Device device);

  // Collective. The metrics as TRL averages them, one process and batches of all ranks' rows
  // assumed. `step` is that of the progress reports.
  v1::EvalMetrics evaluate(TrainableModel& trainable, const FrozenModels& frozen, int step,
                           Reporter& reporter) const;

 private:
  const Objective& objective_;
  const Mesh& mesh_;
  const StreamShare& share_;
  at::Device device_;
  const Dataset& data_;
  std::unique_ptr<Loader> loader_;
};

}  // namespace tessera
