// Chrome traces of chosen training steps: every operator that LibTorch ran on this rank, inside our
// own phases (data, forward, backward, optimizer) and waits for other ranks; and beside it the
// rank's memory by owner over the step. chrome://tracing, Perfetto and TensorBoard's profiler read
// them. Off, it costs nothing but a comparison a step.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <set>

#include "worker/memory/ledger.h"

namespace tessera {

class StepTrace {
 public:
  // Traces each of `steps`, from 1, into directory/step-STEP-rank-RANK.json and its memory into
  // directory/step-STEP-rank-RANK-memory.json. The ledger outlives this.
  StepTrace(std::filesystem::path directory, std::set<int> steps, int rank, at::Device device,
            MemoryLedger& ledger);
  // Ends a trace that an error left running; it is not written.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Traces `count` more, from `first` on.
  void choose(int first, int count);
  // In the thread that trains. Starts when `step` is a chosen one.
  void begin_step(int step);
  // Writes the traces and returns the first's file; none where none runs. Throws
  // std::system_error.
  std::optional<std::filesystem::path> end_step();

 private:
  const std::filesystem::path directory_;
  std::set<int> steps_;
  const int rank_;
  const at::Device device_;
  MemoryLedger& ledger_;
  int running_ = 0;  // the step; 0: none
};

}  // namespace tessera
