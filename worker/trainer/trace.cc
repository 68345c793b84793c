#include "worker/trainer/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cerrno>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "worker/memory/timeline.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// A file of that name is whole: `write` gets another name, of the same ending, for it.
template <typename Write>
void write_whole(const fs::path& path, const Write& write) {
  fs::path unfinished = path;
  unfinished.replace_extension(".tmp.json");
  write(unfinished);
  fs::rename(unfinished, path);
}

// The profiler reports no error of its own: a file that is not there is one.
void save_operators(const fs::path& path) {
  profiler::disableProfiler()->save(path);
  if (fs::file_size(path) == 0)
    throw std::system_error(ENOSPC, std::generic_category(), path.string());
}

}  // namespace

StepTrace::StepTrace(fs::path directory, std::set<int> steps, int rank, at::Device device,
                     MemoryLedger& ledger)
    : directory_(std::move(directory)),
      steps_(std::move(steps)),
      rank_(rank),
      device_(device),
      ledger_(ledger) {}

StepTrace::~StepTrace() {
  if (running_ == 0) return;
  ledger_.stop_recording();
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {
    // The error that ended the step is the one to be told.
  }
}

void StepTrace::choose(int first, int count) {
  for (int step = first; step < first + count; ++step) steps_.insert(step);
}

void StepTrace::begin_step(int step) {
  steps_.erase(steps_.begin(), steps_.lower_bound(step));
  if (!steps_.contains(step)) return;
  fs::create_directories(directory_);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device_.is_cuda()) activities.insert(ActivityType::CUDA);
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  ledger_.start_recording();
  running_ = step;
}

std::optional<fs::path> StepTrace::end_step() {
  const int step = std::exchange(running_, 0);
  if (step == 0) return std::nullopt;
  const std::string name = "step-" + std::to_string(step) + "-rank-" + std::to_string(rank_);
  const fs::path path = directory_ / (name + ".json");
  const MemoryRecording memory = ledger_.stop_recording();
  write_whole(path, save_operators);
  write_whole(directory_ / (name + "-memory.json"),
              [&](const fs::path& unfinished) { write_timeline(memory, unfinished); });
  return path;
}

}  // namespace tessera
