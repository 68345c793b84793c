#include "worker/trainer/reporter.h"

#include <unistd.h>

#include "worker/memory/device_memory.h"
#include "worker/memory/report.h"

namespace tessera {
namespace {

constexpr auto kMemoryInterval = std::chrono::seconds(1);

}  // namespace

void Reporter::started(int resumed_step) {
  v1::TrainerEvent event;
  event.mutable_started()->set_pid(getpid());
  event.mutable_started()->set_resumed_step(resumed_step);
  events_.write(std::move(event));
}

Reports Reporter::data() {
  return {.alive = [this] { progress("tokenize", 0); },
          .note = [this](const std::string& line) { events_.log(v1::LogLine::INFO, rank_, line); }};
}

void Reporter::warn(const std::string& text) {
  if (rank_ == 0) events_.log(v1::LogLine::WARNING, rank_, text);
}

void Reporter::ignored(const std::vector<std::string>& fields,
                       const std::vector<std::string>& tensors) {
  if (rank_ != 0) return;
  const auto warn = [&](const std::string& where, const std::vector<std::string>& names) {
    if (names.empty()) return;
    std::string text = "ignored, as the model has no use for it: " + names.front() + where;
    if (names.size() > 1) text += ", and " + std::to_string(names.size() - 1) + " more";
    events_.log(v1::LogLine::WARNING, rank_, text);
  };
  warn(" of config.json", fields);
  warn(" of the weights", tensors);
}

void Reporter::step(const v1::StepMetrics& metrics) {
  if (rank_ != 0) return;
  v1::TrainerEvent event;
  *event.mutable_step() = metrics;
  tell(std::move(event));
  if (tensorboard_) tensorboard_->step(metrics);
}

void Reporter::evaluated(const v1::EvalMetrics& metrics) {
  if (rank_ != 0) return;
  v1::TrainerEvent event;
  *event.mutable_eval() = metrics;
  tell(std::move(event));
  if (tensorboard_) tensorboard_->evaluated(metrics);
}

void Reporter::tell(v1::TrainerEvent event) {
  *event.mutable_time() = timestamp_now();
  log_.add(event);
  events_.write(std::move(event));
}

void Reporter::take_up_log(const std::filesystem::path& checkpoint, bool tells) {
  if (rank_ != 0) return;
  for (v1::TrainerEvent& event : log_.take_up(checkpoint)) {
    if (tells) events_.write(std::move(event));
  }
}

void Reporter::saved(const v1::CheckpointSaved& checkpoint) {
  if (rank_ != 0) return;
  v1::TrainerEvent event;
  *event.mutable_checkpoint() = checkpoint;
  events_.write(std::move(event));
}

void Reporter::waiting(const std::string& reason, int step) {
  if (rank_ != 0) return;
  v1::TrainerEvent event;
  event.mutable_waiting()->set_reason(reason);
  event.mutable_waiting()->set_step(step);
  events_.write(std::move(event));
}

void Reporter::info(const std::string& text) { events_.log(v1::LogLine::INFO, rank_, text); }

void Reporter::traced(int step, const std::filesystem::path& path) {
  v1::TrainerEvent event;
  event.mutable_trace()->set_rank(rank_);
  event.mutable_trace()->set_step(step);
  event.mutable_trace()->set_path(path.string());
  events_.write(std::move(event));
}

void Reporter::generation(const EngineTransition& transition, int step) {
  v1::TrainerEvent event;
  v1::GenerationTransition& told = *event.mutable_generation();
  told.set_rank(rank_);
  told.set_step(step);
  told.set_is_wake(transition.is_wake);
  told.set_kv_cache_bytes(transition.kv_cache_bytes);
  told.set_weight_bytes(transition.weight_bytes);
  told.set_host_bytes(transition.host_bytes);
  told.set_seconds(transition.seconds);
  events_.write(std::move(event));
}

void Reporter::memory(int step, bool now) {
  if (++num_memory_calls_ == 2) memory_peak(step);
  const auto time = std::chrono::steady_clock::now();
  if (!now && time - last_memory_ < kMemoryInterval) return;
  last_memory_ = time;
  v1::TrainerEvent event;
  *event.mutable_memory() = memory_snapshot(ledger_);
  event.mutable_memory()->set_rank(rank_);
  event.mutable_memory()->set_step(step);
  if (auto allocator = device_allocator(device_)) {
    *event.mutable_memory()->mutable_device_allocator() = *std::move(allocator);
  }
  events_.write(std::move(event));
}

void Reporter::memory_peak(int step) {
  v1::TrainerEvent event;
  *event.mutable_memory_peak() = tessera::memory_peak(ledger_);
  event.mutable_memory_peak()->set_rank(rank_);
  event.mutable_memory_peak()->set_step(step);
  events_.write(std::move(event));
}

}  // namespace tessera
