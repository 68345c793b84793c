// The state of a training run on disk: checkpoints, resuming from one, and the final directory.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/v1/trainer.pb.h"
#include "worker/optim/adamw.h"
#include "worker/trainer/control.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/resume.h"

namespace tessera {

class Checkpointing {
 public:
  // Looks for the checkpoint to go on from. All references outlive this. Throws UserError.
  Checkpointing(const v1::TrainerInput& input, Collectives& ranks, Reporter& reporter);

  // Step of the checkpoint to go on from; 0: none.
  int resumed_step() const { return resume_from_ ? resume_from_->step : 0; }
  const std::optional<ResumePoint>& resume_point() const { return resume_from_; }
  // Collective. Loads that checkpoint, if there is one. Throws UserError; NetworkError when the
  // ranks do not see the same one.
  std::optional<v1::CheckpointState> resume(const TrainableModel& trainable, AdamW& optimizer);

  // Collective. A step is saved once, however often this is called. Names the step in state.best
  // where it is the best evaluation's; that checkpoint outlives save_total_limit. Throws
  // NetworkError when the lease ran out, std::system_error.
  void save(v1::CheckpointState& state, const TrainableModel& trainable, const AdamW& optimizer);
  // Collective. Loads the weights of the checkpoint that state.best names, and returns its step; 0
  // where there is none any more. Throws UserError.
  int load_best(const v1::CheckpointState& state, const TrainableModel& trainable);
  // Collective. Writes output_dir/final and returns its path. Throws as save() does.
  std::string export_model(int step, const TrainableModel& trainable);

 private:
  void agree_on_resume() const;

  const v1::TrainerInput& input_;
  Collectives& ranks_;
  Reporter& reporter_;
  Lease lease_;
  std::optional<ResumePoint> resume_from_;
  int saved_step_ = 0;
};

}  // namespace tessera
