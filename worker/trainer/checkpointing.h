// The state of a training run on disk: checkpoints, resuming from one, and the final directory.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "tessera/v1/trainer.pb.h"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/writer.h"
#include "worker/optim/adamw.h"
#include "worker/parallel/mesh.h"
#include "worker/trainer/control.h"
#include "worker/trainer/peft_options.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/resume.h"
#include "worker/trainer/trained_models.h"

namespace tessera {

// What a checkpoint holds of a rank. `reference`: one that follows the policy; null: there is none.
std::vector<FlatShard> state_vectors(const TrainedModels& trained, const AdamW& optimizer,
                                     const TrainableModel* reference = nullptr);

class Checkpointing {
 public:
  // Looks for the checkpoint to go on from. All references outlive this. Throws UserError.
  Checkpointing(const v1::TrainerInput& input, const Mesh& mesh, Reporter& reporter);

  // The weights of a reference that follows the policy are part of checkpoints. It outlives this.
  void also_keep(const TrainableModel& reference) { reference_ = &reference; }

  // Step of the checkpoint to go on from; 0: none.
  int resumed_step() const { return resume_from_ ? resume_from_->step : 0; }
  const std::optional<ResumePoint>& resume_point() const { return resume_from_; }
  // Collective. Loads that checkpoint, if there is one. Throws UserError; NetworkError when the
  // ranks do not see the same one.
  std::optional<v1::CheckpointState> resume(const TrainedModels& trained, AdamW& optimizer);

  // Collective. Starts to save, and with training.async_save returns while that goes on. A step is
  // saved once, however often this is called. Names the step in state.best where it is the best
  // evaluation's; that checkpoint outlives save_total_limit. Throws NetworkError when the lease ran
  // out, std::system_error when this save or the one before failed.
  void save(v1::CheckpointState& state, const TrainedModels& trained, const AdamW& optimizer);
  // A step's part in a save that goes on: this rank's numbers for the step's all-reduce, and what
  // is to be done with their sums. Throws as save() does.
  CheckpointWriter::Progress progress() const { return writer_.progress(); }
  void agree(const CheckpointWriter::Progress& sum) { writer_.agree(sum); }
  // Call before weights or optimizer states change.
  void before_update() { writer_.before_update(); }
  // Collective. Blocks until the save that goes on is complete. Throws as save() does.
  void finish() { writer_.finish(); }
  // Collective. Loads the weights of the checkpoint that state.best names, and returns its step; 0
  // where there is none any more. Requires finish(). Throws UserError.
  int load_best(const v1::CheckpointState& state, const TrainedModels& trained);
  // Collective. Writes output_dir/final, of a job with adapters an adapter directory unless it
  // merges them, the value model into value_model in it, and returns its path. Throws as save()
  // does.
  std::string export_models(int step, const TrainedModels& trained);

 private:
  void agree_on_resume() const;
  void export_policy(ExportOptions options, TrainableModel& policy);
  void export_whole(const ExportOptions& options, const TrainableModel& model);
  void export_merged(ExportOptions options, TrainableModel& policy);
  void write_final(const std::filesystem::path& directory, const std::function<void()>& write);
  CheckpointWriter::Options writer_options();

  const v1::TrainerInput& input_;
  const Mesh& mesh_;
  Reporter& reporter_;
  Lease lease_;
  const std::string chat_template_;  // given by the job; else empty
  const std::optional<AdapterOfJob> adapter_;
  std::optional<ResumePoint> resume_from_;
  CheckpointWriter writer_;
  int saved_step_ = 0;
  const TrainableModel* reference_ = nullptr;
};

}  // namespace tessera
