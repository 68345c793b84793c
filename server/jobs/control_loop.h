// The one owner of mutable control state: a thread that runs posted tasks in order.
//
// RPC handlers, sessions and timers never touch jobs or nodes; they post. The loop takes all tasks
// that wait, runs them, commits what they wrote in one transaction (one fsync for all of them), and
// only then runs the effects they deferred with after_commit: replies, messages to agents, wake-ups
// of watchers. So nobody sees a change that a crash could still undo. If a task or the commit
// throws (the disk is full, say) memory and disk no longer agree: what the round deferred is
// dropped, and the owner is told. Where that knows no way on the process ends, and the next start
// goes on from the last commit. So it does where the effects may no longer be seen, as another
// coordinator leads.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace tessera::server {

class ControlLoop {
 public:
  using Task = absl::AnyInvocable<void()>;
  // Told what a task, a tick or a commit threw, on the loop. True: the loop goes on.
  using OnFailure = std::function<bool(const std::exception&)>;

  ControlLoop() = default;
  ~ControlLoop() { stop(); }

  // `commit` ends every round of tasks, `tick` runs every `period`.
  void start(absl::Duration period, std::function<void()> tick, std::function<void()> commit,
             OnFailure on_failure);

  // Runs `task` on the loop. Thread safe. After stop() the task is dropped.
  void post(Task task);

  // Runs `effect` on the loop once what has been written so far is committed. Only from the loop
  // itself.
  void after_commit(Task effect) { effects_.push_back(std::move(effect)); }

  // Runs what was posted before, then joins. Idempotent.
  void stop();

 private:
  void run(absl::Duration period, const std::function<void()>& tick,
           const std::function<void()>& commit, const OnFailure& on_failure);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;     // guarded by mutex_
  bool stopping_ = false;      // guarded by mutex_
  std::vector<Task> effects_;  // the loop's own
  std::thread thread_;
};

}  // namespace tessera::server
