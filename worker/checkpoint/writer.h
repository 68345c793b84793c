// Writing checkpoints (worker/checkpoint/checkpoint.h), in the background or at once.
//
// begin() makes the temporary directory and starts a thread on each rank that writes the rank's
// file. Ranks tell each other that theirs is durable with numbers that ride on the all-reduce of a
// training step (progress, agree), so that a save adds no collective to the steps it runs beside.
// When all have, rank 0's thread writes the state and gives the directory its name. One save is
// under way at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tessera/v1/trainer.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/model/safetensors.h"
#include "worker/parallel/mesh.h"

namespace tessera {

struct SavedCheckpoint {
  int step = 0;
  std::filesystem::path path;
  int64_t bytes = 0;         // over all ranks
  double seconds = 0;        // from begin() until it was durable
  double stall_seconds = 0;  // of these, those that the training thread was held up
};

// A file of rank 0's that is no vector.
struct CheckpointExtra {
  std::string name;
  std::string bytes;  // empty: there is no such file
};

class CheckpointWriter {
 public:
  struct Options {
    std::filesystem::path output_dir;
    int total_limit = 0;  // as prune_checkpoints() takes it
    // On rank 0, right before a checkpoint gets its name. Throws where it must not: then the save's
    // temporary directory stays as it is.
    std::function<void()> before_publish = [] {};
    // On rank 0, when it has its name. Both are called in a thread of the writer.
    std::function<void(const SavedCheckpoint&)> on_saved = [](const SavedCheckpoint&) {};
  };
  // The first copy of the shards is written; the other ranks only agree. The mesh's groups must
  // outlive this.
  CheckpointWriter(Options options, const Mesh& mesh);
  // Gives up a save that is under way: it leaves what delete_leftovers() deletes.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Collective. Starts a save of `shards` (1-D, contiguous), after finish() of the one before. The
  // values may be read until before_update(). `state` is completed by what only the writer knows.
  // Throws std::system_error, on every rank, when the directory cannot be made.
  void begin(const v1::CheckpointState& state, const std::vector<FlatShard>& shards,
             CheckpointExtra extra = {});

  // Call before a value of the shards changes.
  void before_update();

  // This rank's part in agree(): 1 or 0 each; as sums over ranks, counts. float64, as what they
  // ride with.
  struct Progress {
    double done = 0;
    double failed = 0;
  };
  Progress progress() const;
  // Takes the sums of all ranks' progress, and goes a stage further when all have done theirs. When
  // any failed, ends the save and throws std::system_error on every rank: that rank its own error,
  // the others one that names the rank.
  void agree(const Progress& sum);

  // Collective. Blocks until the save under way is complete, if there is one. Throws as agree()
  // does.
  void finish();

 private:
  // The same on all ranks at any point between collectives.
  enum class Stage { kIdle, kWriting, kPublishing };

  void advance();
  void start(std::function<void()> task);
  void write_shards();
  void publish();
  double stalled_seconds() const;

  const Options options_;
  const Mesh mesh_;
  Collectives& ranks_;
  Stage stage_ = Stage::kIdle;
  v1::CheckpointState state_;
  CheckpointExtra extra_;
  std::filesystem::path directory_;
  SafetensorsLayout layout_;  // of this rank's file
  std::unique_ptr<Snapshot> snapshot_;
  std::chrono::steady_clock::time_point began_{};

  std::thread thread_;
  std::exception_ptr error_;  // of the thread; read when it is done
  std::atomic<bool> done_ = false, failed_ = false, cancelled_ = false;

  // Time of the training thread, as rank 0's own thread reports it.
  class StallScope;
  mutable std::mutex stall_mutex_;
  std::chrono::steady_clock::duration stalled_{};
  std::chrono::steady_clock::time_point stalled_since_{};  // zero: it is not held up now
};

}  // namespace tessera
