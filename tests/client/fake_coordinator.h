// A coordinator of the tests' own on a Unix socket: it does what a test says, and breaks when told.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/v1/coordinator.grpc.pb.h"

namespace tessera {

class FakeCoordinator : public v1::Coordinator::Service {
 public:
  explicit FakeCoordinator(const std::string& address) : address_(address) { start(); }
  ~FakeCoordinator() override { stop(); }

  void start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  void stop() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  // What the methods answer; set before the first call.
  std::function<grpc::Status(const v1::SubmitJobRequest&, v1::SubmitJobResponse*)> on_submit;
  std::function<grpc::Status(const v1::GetJobRequest&, v1::GetJobResponse*)> on_get;
  std::function<grpc::Status(const v1::ListJobsRequest&, v1::ListJobsResponse*)> on_list;
  std::function<grpc::Status(const v1::WatchJobRequest&, grpc::ServerWriter<v1::WatchJobResponse>*)>
      on_watch;

 private:
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    return on_submit(*request, response);
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override {
    return on_get(*request, response);
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    return on_list(*request, response);
  }
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    return on_watch(*request, writer);
  }

  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tessera
