// One rank of a training run, from loaded weights to the final directory.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "tessera/v1/trainer.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/loader.h"
#include "worker/memory/ledger.h"
#include "worker/objectives/objective.h"
#include "worker/optim/adamw.h"
#include "worker/optim/schedule.h"
#include "worker/trainer/control.h"
#include "worker/trainer/events.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/step_timer.h"

namespace tessera {

class Trainer {
 public:
  // Reads data and weights. `input` is validated; all references outlive the trainer. Throws
  // UserError.
  Trainer(const v1::TrainerInput& input, Collectives& ranks, at::Device device, EventWriter& events,
          MemoryLedger& ledger, CommandReader& commands);

  // Trains to the end, from the job's last checkpoint where this is not its first attempt. Returns
  // the Finished event. Throws UserError (a loss that is not finite), NetworkError,
  // std::system_error.
  v1::Finished run();

 private:
  // Where in the data the next step begins.
  struct Cursor {
    int32_t epoch = 0;
    int64_t microbatch = 0;
  };
  // Sums over this rank's part of a step, then over ranks.
  struct Sums {
    double loss = 0, entropy = 0, correct = 0;
    bool stop = false, save = false;
  };

  int64_t count_total_steps() const;
  void resume();
  Sums train_microbatches(int64_t count, int64_t num_labels);
  void reduce(Sums& sums, bool commands);
  Batch to_device(Batch batch) const;
  void train_step();
  void emit_step(const Sums& sums, int64_t num_labels, int64_t num_tokens, double grad_norm,
                 double rate, double epoch);
  void emit_memory(bool due);
  void evaluate();
  void save();
  std::string export_model();
  std::vector<FlatShard> state_vectors() const;
  void check_finite(double value, const char* what) const;

  const v1::TrainerInput& input_;
  const v1::JobSpec& spec_;
  StepTimer timer_;
  std::unique_ptr<Collectives> ranks_;  // timed
  at::Device device_;
  EventWriter& events_;
  MemoryLedger& ledger_;
  CommandReader& commands_;
  Lease lease_;
  ModelConfig config_;
  std::optional<FoundCheckpoint> resume_from_;
  std::unique_ptr<Dataset> train_data_, eval_data_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Objective> objective_;
  TrainableModel trainable_;
  std::unique_ptr<AdamW> optimizer_;
  int64_t total_steps_ = 0;
  int step_ = 0;  // steps taken
  int saved_step_ = 0;
  int64_t num_tokens_ = 0;
  Cursor cursor_;
  bool stopped_ = false;
  std::chrono::steady_clock::time_point last_memory_{};
};

}  // namespace tessera
