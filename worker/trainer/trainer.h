// One rank of a training run, from loaded weights to the final directory.
//
// The loop is here. What it calls on: Cadence (which steps are logged, evaluated, saved), the
// metrics window, Evaluator, BestMetric, Checkpointing, Reporter (events).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/loader.h"
#include "worker/memory/ledger.h"
#include "worker/objectives/objective.h"
#include "worker/optim/adamw.h"
#include "worker/optim/plateau.h"
#include "worker/optim/schedule.h"
#include "worker/parallel/flight_recorder.h"
#include "worker/trainer/best_metric.h"
#include "worker/trainer/cadence.h"
#include "worker/trainer/checkpointing.h"
#include "worker/trainer/control.h"
#include "worker/trainer/epochs.h"
#include "worker/trainer/evaluation.h"
#include "worker/trainer/events.h"
#include "worker/trainer/frozen.h"
#include "worker/trainer/live_completions.h"
#include "worker/trainer/metrics.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/reference_pass.h"
#include "worker/trainer/reporter.h"
#include "worker/trainer/reward_models.h"
#include "worker/trainer/rollout_pass.h"
#include "worker/trainer/step.h"
#include "worker/trainer/step_timer.h"
#include "worker/trainer/stream_share.h"
#include "worker/trainer/trace.h"

namespace tessera {

class Trainer {
 public:
  // Reads data and weights. `input` is validated; all references outlive the trainer. Throws
  // UserError.
  Trainer(const v1::TrainerInput& input, const Mesh& mesh, at::Device device, EventWriter& events,
          MemoryLedger& ledger, CommandReader& commands, FlightRecorder& recorder);

  // Trains to the end, from the job's last checkpoint where this is not its first attempt. Returns
  // the Finished event. Throws UserError (a loss, or logits of completions, that are not finite),
  // NetworkError, std::system_error.
  v1::Finished run();

 private:
  // The data of one step.
  struct StepData {
    StepMicrobatches microbatches;
    int64_t num_tokens = 0;  // over all ranks
  };
  // What a step leaves to be done.
  struct StepEnd {
    CommandReader::Pending commands;
    bool epoch_ended = false;
  };
  struct Reduced {
    std::vector<MicrobatchSums> sums;
    CommandReader::Pending commands;
  };

  void read_data();
  std::unique_ptr<Dataset> read_data(bool held_out, LiveRollouts*& live);
  void make_evaluator();
  void make_completions();
  void build_models();
  void load_policy();
  void build_value();
  void tell_of_new_scores(const std::vector<std::string>& names);
  LoaderOptions loader_options_of(bool held_out) const;
  TrainedModels trained() { return {trainable_, value_.get()}; }
  FrozenModels frozen() const { return {reference_.get(), teacher_.get()}; }
  void resume();
  bool goes_on() const;
  void save();
  Batch microbatch(int64_t index);
  int64_t row_of(int64_t index) const;
  StepData next_step_data();
  void prepare_completions(int64_t num_microbatches);
  StepRows rows_at(const Cursor& cursor) const;
  // A generation of an epoch.
  struct Made {
    int64_t epoch = 0, number = 0;
  };
  std::optional<StepRows> rows_ahead(Cursor cursor, int64_t step, const Made& last) const;
  StepEnd train_step();
  void enter(Phase phase);
  void choose_traces(const std::vector<v1::TraceSteps>& commands);
  void add_times(const std::vector<v1::RankTime>& times);
  Reduced reduce(const MetricSumsList& sums);
  double learning_rate() const;
  void note_step(const StepData& data, double grad_norm);
  bool advance(const StepData& data);
  double epoch() const;
  bool follow_up(const Due& due);
  void log();
  v1::EvalMetrics evaluate();
  bool take_evaluation(const v1::EvalMetrics& metrics, bool& is_best);
  v1::Finished train();
  void check_finite(double value, const char* what) const;
  [[noreturn]] void refuse_weights() const;

  const v1::TrainerInput& input_;
  const v1::JobSpec& spec_;
  StepTrace trace_;  // outlives the scopes in timer_
  StepTimer timer_;
  FlightRecorder& recorder_;
  Mesh mesh_;  // recorded and timed
  at::Device device_;
  CommandReader& commands_;
  Lease lease_;
  Reporter reporter_;
  Checkpointing checkpointing_;
  ModelConfig config_;
  StreamShare share_;
  std::unique_ptr<Objective> objective_;
  // Of an evaluation whose completions are made: then others are made at once.
  v1::JobSpec eval_spec_;
  std::unique_ptr<Objective> eval_objective_;
  std::unique_ptr<Dataset> train_data_, eval_data_;  // the latter null where there is none
  // Those, where their rows are made here.
  LiveRollouts* live_ = nullptr;
  LiveRollouts* held_out_ = nullptr;
  std::unique_ptr<Loader> loader_;
  std::optional<Epochs> epochs_;
  std::optional<Evaluator> evaluator_;
  TrainableModel trainable_;               // the policy
  std::unique_ptr<TrainableModel> value_;  // trained beside it; null where there is none
  const ReferenceOptions reference_options_;
  std::unique_ptr<TrainableModel> reference_, teacher_;  // null where they are not in memory
  std::unique_ptr<RewardModels> reward_models_;          // null where no model judges
  std::unique_ptr<AdamW> optimizer_;
  std::optional<TrainStep> step_;
  const int64_t steps_of_rate_;  // for so many steps the learning rate is that of the first
  int64_t total_steps_ = 0;
  std::optional<Schedule> schedule_;
  std::optional<Cadence> cadence_;
  BestMetric best_metric_;
  std::optional<LiveCompletions> maker_;  // of completions that are made here
  std::optional<RolloutPass> rollouts_;   // of completions that are compared
  std::optional<ReferencePass> scores_;   // where the reference's are computed beforehand
  // What a checkpoint holds: steps taken, the data cursor, sums that span steps.
  v1::CheckpointState state_;
  v1::StepMetrics last_step_;  // all but the means over the window
  // Sums by rank since the last log, and of how many steps.
  std::vector<v1::RankTime> rank_times_;
  int num_times_ = 0;
};

}  // namespace tessera
