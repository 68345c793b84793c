// Makes a launcher's calls on a thread of its own, one after the other, so that the control loop
// waits for none of them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/jobs/control_loop.h"
#include "server/launchers/launcher.h"

namespace tessera::server {

// Thread safe. Answers come in the order of the calls, through `post`; none after the destructor
// began.
class LaunchThread {
 public:
  using Post = std::function<void(ControlLoop::Task)>;
  template <typename Answer>
  using Done = absl::AnyInvocable<void(Answer)>;

  LaunchThread(std::unique_ptr<Launcher> launcher, Post post);
  // Waits for the call under way.
  ~LaunchThread();

  std::string kind() const { return launcher_->kind(); }
  int max_devices_per_node() const { return launcher_->max_devices_per_node(); }

  void submit(LaunchRequest request, Done<absl::StatusOr<std::string>> done);
  void list(Done<absl::StatusOr<std::vector<ClusterJob>>> done);
  void is_gone(ClusterJob job, Done<absl::StatusOr<bool>> done);
  void remove(ClusterJob job, Done<absl::Status> done);

 private:
  // Makes the call, then has the loop take its answer.
  template <typename Answer>
  void add(absl::AnyInvocable<Answer()> call, Done<Answer> done);
  void run(const std::stop_token& stop);

  const std::unique_ptr<Launcher> launcher_;
  const Post post_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  // Guarded by mutex_. Bounded by the callers: a call of each kind at a time for an allocation.
  std::deque<absl::AnyInvocable<void()>> calls_;
  // Last: it uses the others.
  std::jthread thread_;
};

}  // namespace tessera::server
