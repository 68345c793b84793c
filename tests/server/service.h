// What the tests of tesserad share: the process itself, clients of it, and an agent that a test
// plays by hand.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "tessera/v1/agent.grpc.pb.h"
#include "tessera/v1/coordinator.grpc.pb.h"
#include "tests/client/temp_dir.h"
#include "tests/support/tesserad_process.h"

namespace tessera::server {

// A tesserad on a directory of its own.
class Service {
 public:
  // `prepare` may do something to the directory before the process starts; its state is in state/.
  explicit Service(std::vector<std::string> flags = {},
                   const std::function<void(const std::filesystem::path&)>& prepare = {});

  // spawn(), and then it answers; the test fails otherwise.
  void start();
  void spawn();
  // Waits until it serves; false: it has ended, or does not in time.
  bool answers();
  // The exit code, reaped, if it has ended by itself: -1 by a signal.
  std::optional<int> ended() { return process_.ended(); }
  // What it has written to its standard error.
  std::string log() const { return process_.log(); }
  // SIGKILL, and reaps it.
  void crash() { process_.crash(); }
  // SIGTERM; gives the exit code.
  int stop() { return process_.stop(); }

  v1::Coordinator::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  const support::TesseradProcess& process() const { return process_; }
  int http_port() const;
  const std::filesystem::path& directory() const { return directory_.path(); }

  v1::Job get(const std::string& id);
  // Submits, expects success.
  v1::Job submit(const v1::JobSpec& spec);
  grpc::Status submit(const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response);
  v1::Job cancel(const std::string& id);
  // Events from `start` to the end of the stream.
  std::vector<v1::Event> events(const std::string& id, int64_t start = 0, bool follow = false);
  // Returns once the job is in the state; fails after a while.
  v1::Job await(const std::string& id, v1::Job::State state);
  // The states the job went through.
  std::vector<v1::Job::State> states(const std::string& id);

 private:
  TempDir directory_;
  support::TesseradProcess process_;
  int num_requests_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

// An agent in the hands of a test: it does nothing by itself.
class Agent {
 public:
  Agent(Service& service, const std::string& node, int num_devices,
        const std::vector<v1::RunId>& runs = {});
  Agent(Service& service, const std::string& node, const std::vector<v1::Device>& devices,
        const std::vector<v1::RunId>& runs = {});
  ~Agent();

  const v1::Welcome& welcome() const { return welcome_; }

  // The next message that is of the kind; others are dropped. Fails the test when the session ends
  // first.
  v1::SessionResponse next(v1::SessionResponse::KindCase kind);
  void send(const v1::SessionRequest& request);
  // Status of the session once it has ended.
  grpc::Status finish();

  // Answers the next Prepare, and gives it.
  v1::Prepare prepare();
  // Answers the next Probe with what `fill` makes of it, and gives it.
  v1::Probe answer_probe(const std::function<void(const v1::Probe&, v1::Probed&)>& fill);
  // Sends one event of a rank and awaits its Ack.
  v1::Cursor event(const v1::RunId& run, int rank, const v1::TrainerEvent& event);
  // The same, at an offset of the caller's choice.
  v1::Cursor event_at(const v1::RunId& run, int rank, int64_t begin, const v1::TrainerEvent& event);
  void started(const v1::RunId& run, int rank, int resumed_step = 0);
  void step(const v1::RunId& run, int rank, int step);
  // Finished, RankExited.
  void finished(const v1::RunId& run, int rank);
  void exited(const v1::RunId& run, int rank, v1::Failure::Kind kind, const std::string& message);
  void ended(const v1::RunId& run);

  std::map<int, int64_t> offsets;  // by rank

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>> stream_;
  v1::Welcome welcome_;
};

// Devices of one kind and model, numbered from 0.
std::vector<v1::Device> devices(int count, const std::string& kind, const std::string& model = "",
                                int64_t memory_bytes = 0);

struct Submitted {
  grpc::Status status;
  v1::Job job;
};

// Submits while `machine` plays the agent, on a thread of its own that has ended on return.
Submitted submit_while(Service& service, const v1::JobSpec& spec,
                       const std::function<void()>& machine);

// A job that passes the rules.
v1::JobSpec make_spec(int num_processes = 1, int max_restarts = 3);

// The detail of the type, parsed; a default one where there is none.
google::rpc::BadRequest bad_request(const grpc::Status& status);
google::rpc::ErrorInfo error_info(const grpc::Status& status);

}  // namespace tessera::server
