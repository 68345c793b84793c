// The held-out documents' metrics.
#pragma once

#include <memory>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/loader.h"
#include "worker/objectives/objective.h"
#include "worker/parallel/collectives.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reporter.h"

namespace tessera {

class Evaluator {
 public:
  // Reads data.eval. All references outlive this. Throws UserError.
  Evaluator(const v1::JobSpec& spec, const ModelConfig& config, const Objective& objective,
            Collectives& ranks, at::Device device, Reporter& reporter);

  // Collective. The metrics as TRL averages them, one process and batches of all ranks' rows
  // assumed. `step` is that of the progress reports.
  v1::EvalMetrics evaluate(TrainableModel& trainable, int step, Reporter& reporter) const;

 private:
  const Objective& objective_;
  Collectives& ranks_;
  at::Device device_;
  std::unique_ptr<Dataset> data_;
  std::unique_ptr<Loader> loader_;
};

}  // namespace tessera
