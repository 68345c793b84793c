// Which checkpoint a run goes on from, and where in the data that leads.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/parallel/flat_layout.h"
#include "worker/trainer/epochs.h"

namespace tessera {

struct ResumePoint {
  int step = 0;
  std::filesystem::path path;
  std::string field;  // of the job file, for errors
};

// What training.resume_from_checkpoint names; none when it is absent. Throws UserError when there
// is no such checkpoint.
std::optional<ResumePoint> requested_checkpoint(const v1::Training& training);

// The newest checkpoint that the job itself wrote, where it is started again; else the requested
// one.
std::optional<ResumePoint> find_resume_point(const v1::TrainerInput& input);

// Throws UserError unless the checkpoint is complete and made of a model with these layouts (made
// for any number of ranks). Returns what it says of itself.
v1::CheckpointState check_checkpoint(const ResumePoint& point,
                                     const std::vector<FlatLayout>& layouts);

// Throws UserError where the checkpoint's optimizer states are of another type than the job's.
void check_optimizer_states(const ResumePoint& point, const v1::CheckpointState& state,
                            const v1::Memory& memory);

// The next row of the checkpoint's epoch. In the middle of an epoch that row means the same only in
// the same order: throws UserError when the data, the seed, shuffling or what completions are
// compared with differ from then.
// training.ignore_data_skip gives the epoch's beginning.
Cursor resumed_cursor(const ResumePoint& point, const v1::CheckpointState& state,
                      const v1::Training& training, const Loader& loader);

}  // namespace tessera
