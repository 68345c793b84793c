// Asks one reward server about any number of completions: in batches, several calls at once, each
// with a deadline, made again until it answers.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tessera/v1/reward.grpc.pb.h"
#include "worker/reward_calls/retry.h"
#include "worker/rewards/frames.pb.h"

namespace tessera {

class RewardCalls {
 public:
  using Reply = std::function<void(const rewards::Answer&)>;

  RewardCalls(rewards::Question question, Reply reply);
  ~RewardCalls();
  RewardCalls(const RewardCalls&) = delete;
  RewardCalls& operator=(const RewardCalls&) = delete;

  // Replies that it waits and goes on, each as it happens, and at last with scores or a refusal.
  void run();

 private:
  using Clock = Retry::Clock;

  struct Batch {
    v1::ScoreRequest request;
    int begin = 0;  // of the question's completions
    Retry retry;
    Clock::time_point due{};  // to be called not before
    std::optional<Clock::time_point> failing_since;
  };
  struct Call {
    Batch* batch;
    grpc::ClientContext context;
    v1::ScoreResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::ScoreResponse>> reader;
  };

  void make_batches();
  void connect();
  void start_due();
  void start(Batch& batch);
  // Until a call ends, or a batch is due.
  std::unique_ptr<Call> next_ended();
  void take(const Call& call);
  void take_scores(const Call& call);
  void try_again(const Call& call);
  // Tells of what is waited for, where that is news.
  void tell_waiting();
  void refuse(const std::string& rest);

  const rewards::Question question_;
  const Reply reply_;
  std::minstd_rand random_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<v1::RewardService::Stub> stub_;
  std::list<Batch> batches_;     // all of them
  std::vector<Batch*> waiting_;  // not under way
  int num_calls_ = 0;            // under way
  size_t num_answered_ = 0;      // batches
  std::string failure_;          // of the last call that failed
  std::string told_;             // of it, what is known outside
  bool is_refused_ = false;
  rewards::Answer answer_;
};

}  // namespace tessera
