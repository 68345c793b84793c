#include "worker/checkpoint/writer.h"

#include <google/protobuf/util/json_util.h>

#include <string>
#include <utility>

#include "worker/checkpoint/durable_files.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensor_io.h"
#include "worker/memory/ledger.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

SafetensorsLayout layout_of_shards(const std::vector<FlatShard>& shards) {
  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (const FlatShard& shard : shards) {
    TORCH_CHECK(shard.data.dim() == 1 && shard.data.is_contiguous(), shard.name, " is not flat");
    const int64_t numel = shard.data.numel();
    tensors.emplace_back(shard.name, TensorInfo{shard.data.scalar_type(), {numel}, numel});
  }
  return lay_out_safetensors(tensors);
}

std::string to_json(const v1::CheckpointState& state) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  const auto status = google::protobuf::util::MessageToJsonString(state, &json, options);
  TORCH_CHECK(status.ok(), status.ToString());
  return json;
}

int64_t bytes_in(const fs::path& directory) {
  int64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(directory))
    bytes += static_cast<int64_t>(file.file_size());
  return bytes;
}

// Ends the thread of a writer that goes away.
class Cancelled : public std::exception {};

}  // namespace

class CheckpointWriter::StallScope {
 public:
  explicit StallScope(CheckpointWriter& writer) : writer_(writer) {
    const std::lock_guard lock(writer_.stall_mutex_);
    writer_.stalled_since_ = Clock::now();
  }
  ~StallScope() {
    const std::lock_guard lock(writer_.stall_mutex_);
    writer_.stalled_ += Clock::now() - std::exchange(writer_.stalled_since_, {});
  }

 private:
  CheckpointWriter& writer_;
};

CheckpointWriter::CheckpointWriter(Options options, const Mesh& mesh)
    : options_(std::move(options)), mesh_(mesh), ranks_(mesh_.world) {}

CheckpointWriter::~CheckpointWriter() {
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::begin(const v1::CheckpointState& state, const std::vector<FlatShard>& shards,
                             CheckpointExtra extra) {
  finish();
  extra_ = std::move(extra);
  {
    const std::lock_guard lock(stall_mutex_);
    stalled_ = {};
  }
  const StallScope stall(*this);
  began_ = Clock::now();
  directory_ = checkpoint_path(options_.output_dir, state.step());
  state_ = state;
  state_.set_world_size(mesh_.shard.size());
  state_.clear_vectors();
  for (const FlatShard& shard : shards) (*state_.mutable_vectors())[shard.name] = shard.numel;
  run_together(ranks_, "cannot write " + directory_.string(), [&] {
    if (ranks_.rank() != 0) return;
    fs::create_directories(options_.output_dir);
    delete_leftovers(options_.output_dir);
    fs::create_directory(temporary_name(directory_));
  });
  const bool writes = mesh_.replicate.rank() == 0;
  const std::vector<FlatShard> written = writes ? shards : std::vector<FlatShard>();
  layout_ = layout_of_shards(written);
  snapshot_ = std::make_unique<Snapshot>(written);
  stage_ = Stage::kWriting;
  start([this, writes] {
    if (writes) write_shards();
  });
}

void CheckpointWriter::before_update() {
  if (stage_ != Stage::kWriting) return;
  const StallScope stall(*this);
  snapshot_->detach();
}

CheckpointWriter::Progress CheckpointWriter::progress() const {
  if (stage_ == Stage::kIdle) return {};
  return {.done = done_ ? 1. : 0., .failed = failed_ ? 1. : 0.};
}

void CheckpointWriter::agree(const Progress& sum) {
  if (stage_ == Stage::kIdle) return;
  if (sum.failed == 0 && sum.done < ranks_.size()) return;
  const StallScope stall(*this);
  // Where one failed, the others end what they are at: files of a few more parts.
  advance();
}

void CheckpointWriter::finish() {
  while (stage_ != Stage::kIdle) {
    const StallScope stall(*this);
    advance();
  }
}

// Waits for all ranks' threads, and starts the next stage or throws what one of them threw.
void CheckpointWriter::advance() {
  const Stage stage = std::exchange(stage_, Stage::kIdle);
  thread_.join();
  try {
    run_together(ranks_, "cannot write " + directory_.string(), [&] {
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    });
  } catch (const std::system_error&) {
    std::error_code ignored;
    if (ranks_.rank() == 0) fs::remove_all(temporary_name(directory_), ignored);
    throw;
  }
  if (stage == Stage::kPublishing) return;
  snapshot_.reset();
  stage_ = Stage::kPublishing;
  start([this] {
    if (ranks_.rank() == 0) publish();
  });
}

void CheckpointWriter::start(std::function<void()> task) {
  done_ = failed_ = false;
  thread_ = std::thread([this, task = std::move(task)] {
    const OwnerScope scope(Owner::kCheckpoint);
    const PhaseScope phase(Phase::kCheckpoint);
    try {
      task();
    } catch (...) {
      error_ = std::current_exception();
      failed_ = true;
    }
    done_ = true;
  });
}

void CheckpointWriter::write_shards() {
  const fs::path path = temporary_name(directory_) / checkpoint_rank_file(mesh_.shard.rank());
  OutputFile file = OutputFile::create(path, layout_.file_bytes);
  file.write(layout_.prefix.data(), static_cast<int64_t>(layout_.prefix.size()), 0);
  snapshot_->read([&](size_t shard, int64_t begin, const at::Tensor& part) {
    if (cancelled_) throw Cancelled();
    const int64_t offset = begin * static_cast<int64_t>(part.element_size());
    write_tensor(file, layout_.offsets[shard] + offset, part, part.scalar_type());
  });
  file.sync_and_close();
}

void CheckpointWriter::publish() {
  const fs::path temporary = temporary_name(directory_);
  if (!extra_.bytes.empty()) write_durably(temporary / extra_.name, extra_.bytes);
  write_durably(temporary / kCheckpointStateFile, to_json(state_));
  SavedCheckpoint saved{.step = state_.step(), .path = directory_, .bytes = bytes_in(temporary)};
  options_.before_publish();
  publish_directory(directory_);
  prune_checkpoints(options_.output_dir, state_.job_id(), options_.total_limit,
                    state_.best().checkpoint_step());
  saved.seconds = seconds(Clock::now() - began_);
  saved.stall_seconds = stalled_seconds();
  options_.on_saved(saved);
}

double CheckpointWriter::stalled_seconds() const {
  const std::lock_guard lock(stall_mutex_);
  const bool now = stalled_since_ != Clock::time_point{};
  return seconds(stalled_ + (now ? Clock::now() - stalled_since_ : Clock::duration{}));
}

}  // namespace tessera
