// Judges on a thread of its own: whoever asks does other things until the scores are needed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <future>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "worker/rewards/judge.h"

namespace tessera {

// Thread safe.
class JudgingThread {
 public:
  // As Judges takes them. Throws as Judges does.
  JudgingThread(const v1::JobSpec& spec, const std::string& job_id,
                const std::filesystem::path& program = {});
  // What is not judged by now never is.
  ~JudgingThread();
  JudgingThread(const JudgingThread&) = delete;
  JudgingThread& operator=(const JudgingThread&) = delete;

  // Those that were given before are judged before. Scores, or what Judges::judge() throws, are in
  // the future; until it is ready, or this is gone, the completions stay where they are.
  std::future<std::vector<float>> judge(std::span<const JudgedCompletion> completions,
                                        int32_t step);

  // Why servers give no scores at the moment; empty: nothing is in the way.
  std::string waits_for() const;

 private:
  struct Task {
    std::span<const JudgedCompletion> completions;
    int32_t step = 0;
    std::promise<std::vector<float>> scores;
  };
  // Thrown through what judges.
  class GivenUp : public std::exception {};

  void run();
  bool is_ending() const;

  mutable std::mutex mutex_;  // guards the next four
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::string waits_for_;
  bool ends_ = false;
  Judges judges_;  // the thread's
  std::thread thread_;
};

}  // namespace tessera
