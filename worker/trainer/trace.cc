#include "worker/trainer/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cerrno>
#include <set>
#include <string>
#include <system_error>
#include <utility>

namespace tessera {
namespace {

namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

}  // namespace

StepTrace::StepTrace(fs::path directory, std::set<int> steps, int rank, at::Device device)
    : directory_(std::move(directory)), steps_(std::move(steps)), rank_(rank), device_(device) {}

StepTrace::~StepTrace() {
  if (running_ == 0) return;
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {
    // The error that ended the step is the one to be told.
  }
}

void StepTrace::begin_step(int step) {
  if (!steps_.contains(step)) return;
  fs::create_directories(directory_);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device_.is_cuda()) activities.insert(ActivityType::CUDA);
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  running_ = step;
}

std::optional<fs::path> StepTrace::end_step() {
  const int step = std::exchange(running_, 0);
  if (step == 0) return std::nullopt;
  const fs::path path =
      directory_ / ("step-" + std::to_string(step) + "-rank-" + std::to_string(rank_) + ".json");
  // The profiler reports no error of its own: a file that is not there is one.
  fs::path unfinished = path;
  unfinished.replace_extension(".tmp.json");
  profiler::disableProfiler()->save(unfinished);
  if (fs::file_size(unfinished) == 0) {
    throw std::system_error(ENOSPC, std::generic_category(), unfinished.string());
  }
  fs::rename(unfinished, path);
  return path;
}

}  // namespace tessera
