#include "worker/trainer/resume.h"

#include "worker/checkpoint/reader.h"
#include "worker/errors.h"

namespace tessera {
namespace {

constexpr char kField[] = "training.resume_from_checkpoint";

}  // namespace

std::optional<ResumePoint> requested_checkpoint(const v1::Training& training) {
  if (!training.has_resume_from_checkpoint()) return std::nullopt;
  const std::string& wanted = training.resume_from_checkpoint();
  const bool latest = wanted == "true" || wanted == "latest";
  const FoundCheckpoint found = find_checkpoint(latest ? training.output_dir() : wanted, kField);
  return ResumePoint{found.step, found.path, kField};
}

std::optional<ResumePoint> find_resume_point(const v1::TrainerInput& input) {
  const v1::Training& training = input.spec().training();
  if (input.attempt() > 1) {
    const auto own = find_latest_checkpoint(training.output_dir(), input.job_id());
    if (own) return ResumePoint{own->step, own->path, "training.output_dir"};
  }
  return requested_checkpoint(training);
}

v1::CheckpointState check_checkpoint(const ResumePoint& point,
                                     const std::vector<FlatLayout>& layouts) {
  CheckpointReader reader(point.path, point.field);
  reader.check_complete();
  for (const FlatLayout& layout : layouts) {
    reader.check_vector(layout.name + "/parameter", layout.used_numel);
  }
  return reader.state();
}

void check_optimizer_states(const ResumePoint& point, const v1::CheckpointState& state,
                            const v1::Memory& memory) {
  const std::string then =
      state.optimizer_state_dtype().empty() ? "float32" : state.optimizer_state_dtype();
  if (then == memory.optimizer_state_dtype()) return;
  throw UserError("memory.optimizer_state_dtype",
                  "memory.optimizer_state_dtype is " + memory.optimizer_state_dtype() + ", and " +
                      point.path.string() + " holds states in " + then +
                      "; a run goes on with the type that it began with");
}

Cursor resumed_cursor(const ResumePoint& point, const v1::CheckpointState& state,
                      const v1::Training& training, const Loader& loader) {
  if (training.ignore_data_skip() || state.row() == 0) return {state.epoch(), 0};
  const auto refuse = [&](const std::string& field, const std::string& difference) {
    throw UserError(field, point.path.string() + " stands in the middle of an epoch, at row " +
                               std::to_string(state.row()) + " of " +
                               std::to_string(state.num_rows()) + ", and " + difference +
                               "; with training.ignore_data_skip the epoch begins anew");
  };
  if (state.num_rows() != loader.num_rows()) {
    refuse("data.train", "data.train now makes " + std::to_string(loader.num_rows()) + " rows");
  }
  if (state.shuffle() != loader.shuffles()) {
    refuse("training.train_sampling_strategy", state.shuffle()
                                                   ? "its rows were shuffled then and are not now"
                                                   : "its rows were not shuffled then and are now");
  }
  if (state.generation_rows() != loader.generation_rows()) {
    refuse("training.per_device_train_batch_size",
           "generations had " + std::to_string(state.generation_rows()) + " rows then and have " +
               std::to_string(loader.generation_rows()) + " now");
  }
  if (state.shuffle() && state.seed() != training.seed()) {
    refuse("training.seed", "training.seed was " + std::to_string(state.seed()) +
                                " then and is now " + std::to_string(training.seed()));
  }
  return {state.epoch(), state.row()};
}

}  // namespace tessera
