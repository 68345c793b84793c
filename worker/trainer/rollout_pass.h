// Takes a job's completions from the data to the objective: what was made at once is scored with
// the models as they are when training comes to it, and compared; then its microbatches are dealt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/data/loader.h"
#include "worker/data/rollout_dataset.h"
#include "worker/objectives/online.h"
#include "worker/parallel/mesh.h"
#include "worker/trainer/stream_share.h"

namespace tessera {

class RolloutPass {
 public:
  struct Parts {
    const RolloutDataset& rollouts;
    const Loader& loader;  // of these
    const OnlineMethod& method;
    const Mesh& mesh;
    const StreamShare& share;
    at::Device device;
  };
  // All outlive this.
  explicit RolloutPass(const Parts& parts);

  // This rank's part of the microbatch that begins with row `row` of the epoch, with its targets,
  // on the CPU. Collective where it is the first one of its generation that is asked for.
  Batch microbatch(const Models& models, int64_t epoch, int64_t row);

  // Of the generations that were scored since the last call, by TRL's names.
  std::vector<std::pair<std::string, double>> take_metrics();

  // What a run needs to go on at the state's cursor.
  void save(v1::CheckpointState& state) const;
  // Takes it up, where it is of the generation at that cursor. Throws UserError: the data is not
  // what it was.
  void resume(const v1::CheckpointState& state, int64_t epoch, int64_t row);

 private:
  // Names a generation.
  struct Begin {
    int64_t epoch = -1, row = -1;
    bool operator==(const Begin&) const = default;
  };

  Begin begin_of(int64_t epoch, int64_t row) const {
    return {epoch, parts_.rollouts.generation_begin(row)};
  }
  GenerationScores score(const Models& models, const Begin& begin) const;
  void take(const Begin& begin, GenerationScores scores);
  CompletionTargets targets_of(const Batch& batch, int64_t epoch, int64_t row) const;
  std::vector<int64_t> places_of(int64_t epoch, int64_t row) const;
  void count(int64_t epoch, int64_t row, CompletionTargets& targets) const;
  bool has_end_value(int64_t place) const;

  const Parts parts_;
  const OnlineMethod::Needs needs_;
  Begin begin_;  // of the generation that all below is of
  GenerationScores scores_;
  GenerationTargets targets_;
  std::vector<std::pair<std::string, double>> metrics_;
};

// What a rehearsal knows of all this: sizes alone.
class RehearsedCompletions {
 public:
  // Both outlive this.
  RehearsedCompletions(const OnlineMethod& method, const RolloutDataset& rollouts);

  // The targets of a batch, without values, where a job has them.
  CompletionTargets targets_of(const Batch& batch, at::Device device) const;
  // A microbatch of the pass over new completions.
  void score(const Models& models, const Batch& batch, at::Device device) const;

 private:
  const OnlineMethod::Needs needs_;
  int64_t num_labels_, num_rollouts_;  // of a generation
  GenerationTargets targets_;
};

}  // namespace tessera
