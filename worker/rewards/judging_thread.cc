#include "worker/rewards/judging_thread.h"

#include <utility>

namespace tessera {

JudgingThread::JudgingThread(const v1::JobSpec& spec, const std::string& job_id,
                             const std::filesystem::path& program)
    : judges_(spec,
              {.job_id = job_id,
               .on_waiting =
                   [this](const std::string& reason) {
                     const std::lock_guard lock(mutex_);
                     waits_for_ = reason;
                   },
               .alive =
                   [this] {
                     if (is_ending()) throw GivenUp();
                   }},
              program),
      thread_([this] { run(); }) {}

JudgingThread::~JudgingThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::future<std::vector<float>> JudgingThread::judge(std::span<const JudgedCompletion> completions,
                                                     int32_t step) {
  Task task{.completions = completions, .step = step};
  std::future<std::vector<float>> scores = task.scores.get_future();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return scores;
}

std::string JudgingThread::waits_for() const {
  const std::lock_guard lock(mutex_);
  return waits_for_;
}

bool JudgingThread::is_ending() const {
  const std::lock_guard lock(mutex_);
  return ends_;
}

void JudgingThread::run() {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (ends_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task.scores.set_value(judges_.judge(task.completions, task.step));
    } catch (...) {
      task.scores.set_exception(std::current_exception());
    }
  }
}

}  // namespace tessera
