#include "server/launchers/launch_thread.h"

#include <utility>

namespace tessera::server {

LaunchThread::LaunchThread(std::unique_ptr<Launcher> launcher, Post post)
    : launcher_(std::move(launcher)),
      post_(std::move(post)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

LaunchThread::~LaunchThread() = default;

template <typename Answer>
void LaunchThread::add(absl::AnyInvocable<Answer()> call, Done<Answer> done) {
  const std::lock_guard lock(mutex_);
  calls_.push_back([this, call = std::move(call), done = std::move(done)]() mutable {
    post_([done = std::move(done), answer = call()]() mutable { done(std::move(answer)); });
  });
  wake_.notify_one();
}

void LaunchThread::submit(LaunchRequest request, Done<absl::StatusOr<std::string>> done) {
  add<absl::StatusOr<std::string>>(
      [this, request = std::move(request)] { return launcher_->submit(request); }, std::move(done));
}

void LaunchThread::list(Done<absl::StatusOr<std::vector<ClusterJob>>> done) {
  add<absl::StatusOr<std::vector<ClusterJob>>>([this] { return launcher_->list(); },
                                               std::move(done));
}

void LaunchThread::is_gone(ClusterJob job, Done<absl::StatusOr<bool>> done) {
  add<absl::StatusOr<bool>>([this, job = std::move(job)] { return launcher_->is_gone(job); },
                            std::move(done));
}

void LaunchThread::remove(ClusterJob job, Done<absl::Status> done) {
  add<absl::Status>([this, job = std::move(job)] { return launcher_->remove(job); },
                    std::move(done));
}

void LaunchThread::run(const std::stop_token& stop) {
  while (true) {
    absl::AnyInvocable<void()> call;
    {
      std::unique_lock lock(mutex_);
      if (!wake_.wait(lock, stop, [this] { return !calls_.empty(); })) return;
      if (stop.stop_requested()) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    call();
  }
}

}  // namespace tessera::server
