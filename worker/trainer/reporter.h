// The events of a training run: what a rank tells of its steps, evaluations, checkpoints and
// memory.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/dataset.h"
#include "worker/generate/engine.h"
#include "worker/memory/ledger.h"
#include "worker/parallel/flight_recorder.h"
#include "worker/trainer/events.h"
#include "worker/trainer/metrics_log.h"
#include "worker/trainer/tensorboard.h"

namespace tessera {

// Steps, evaluations and checkpoints are rank 0's to report, memory every rank's.
class Reporter {
 public:
  // All references outlive this.
  Reporter(EventWriter& events, const MemoryLedger& ledger, FlightRecorder& recorder,
           at::Device device, int rank)
      : events_(events), ledger_(ledger), recorder_(recorder), device_(device), rank_(rank) {}

  // From now on, rank 0 writes its metrics to TensorBoard too.
  void report_to(std::unique_ptr<TensorBoardWriter> tensorboard) {
    tensorboard_ = std::move(tensorboard);
  }

  void started(int resumed_step);
  // Warns of what config.json and the weights hold and the model has no use for.
  void ignored(const std::vector<std::string>& fields, const std::vector<std::string>& tensors);
  // See EventWriter::progress. The flight recorder has it, too.
  void progress(const char* phase, int step) {
    recorder_.enter(phase, step);
    events_.progress(phase, step);
  }
  // Of documents that are read: progress and log lines. To be called while this lives.
  Reports data();
  // Rank 0 only, like the next three.
  void warn(const std::string& text);
  void step(const v1::StepMetrics& metrics);
  void evaluated(const v1::EvalMetrics& metrics);
  void saved(const v1::CheckpointSaved& checkpoint);
  // What a checkpoint of now keeps of steps and evaluations; on other ranks nothing.
  std::string metrics_log() const { return log_.bytes(); }
  // Takes up what the checkpoint keeps of them. With `tells` it is told again: a coordinator that
  // has heard of it leaves it away.
  void take_up_log(const std::filesystem::path& checkpoint, bool tells);
  // Training waits for something outside of it; empty: it goes on. Rank 0 only.
  void waiting(const std::string& reason, int step);
  void info(const std::string& text);
  // Of this rank, as what follows.
  void traced(int step, const std::filesystem::path& path);
  // Its engine's.
  void generation(const EngineTransition& transition, int step);
  // To be called after each step and at the end. At most one event a second, unless `now`; at the
  // second call, one of the peak by owner, block and phase as well.
  void memory(int step, bool now);

 private:
  void memory_peak(int step);
  void tell(v1::TrainerEvent event);

  EventWriter& events_;
  const MemoryLedger& ledger_;
  FlightRecorder& recorder_;
  const at::Device device_;
  int rank_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  MetricsLog log_;
  std::chrono::steady_clock::time_point last_memory_{};
  int num_memory_calls_ = 0;
};

}  // namespace tessera
