#include "tests/worker/rewards/scripted_server.h"

#include <algorithm>
#include <chrono>

namespace tessera {

ScriptedServer::ScriptedServer(const std::string& address, Script script)
    : script_(std::move(script)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

ScriptedServer::~ScriptedServer() { server_->Shutdown(std::chrono::system_clock::now()); }

std::vector<v1::ScoreRequest> ScriptedServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

int ScriptedServer::most_at_once() const {
  const std::lock_guard lock(mutex_);
  return most_at_once_;
}

grpc::Status ScriptedServer::Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                                   v1::ScoreResponse* response) {
  int call = 0;
  {
    const std::lock_guard lock(mutex_);
    call = static_cast<int>(requests_.size());
    requests_.push_back(*request);
    most_at_once_ = std::max(most_at_once_, ++at_once_);
  }
  const grpc::Status status = script_(call, *context, *request, *response);
  const std::lock_guard lock(mutex_);
  --at_once_;
  return status;
}

}  // namespace tessera
