// A reward server that does what a test says.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/v1/reward.grpc.pb.h"

namespace tessera {

class ScriptedServer : private v1::RewardService::Service {
 public:
  // Called from several threads at once; `call` counts from 0 in the order they begin.
  using Script =
      std::function<grpc::Status(int call, grpc::ServerContext& context,
                                 const v1::ScoreRequest& request, v1::ScoreResponse& response)>;

  // Listens at `address`.
  ScriptedServer(const std::string& address, Script script);
  ~ScriptedServer() override;

  // All so far.
  std::vector<v1::ScoreRequest> requests() const;
  int most_at_once() const;

 private:
  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                     v1::ScoreResponse* response) override;

  const Script script_;
  mutable std::mutex mutex_;
  std::vector<v1::ScoreRequest> requests_;
  int at_once_ = 0, most_at_once_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tessera
