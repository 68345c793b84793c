// A coordinator for the agent's tests: commits event batches by the rules of agent.proto, records
// all else, and sends what the test tells it to. It can go away and come back with what it has
// committed.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/v1/agent.grpc.pb.h"

namespace tessera::agent {

inline constexpr std::chrono::seconds kAwaitLimit{20};

class FakeCoordinator : public v1::AgentService::Service {
 public:
  // Listens on a Unix socket there.
  explicit FakeCoordinator(std::filesystem::path socket) : socket_(std::move(socket)) {}
  ~FakeCoordinator() override { stop(); }

  std::string target() const { return "unix:" + socket_.string(); }
  void start();
  void stop();

  void send(v1::SessionResponse message);
  // Leaves the run out of the next Welcome.
  void forget(const v1::RunId& run);
  // Ends the session as a newer session of the same node would.
  void abort_session();
  // Withholds acknowledgements, though batches are committed.
  void hold_acks();
  // Answers no heartbeats from now on, or does again.
  void be_deaf(bool deaf);

  // Everything received so far but heartbeats and event batches.
  std::vector<v1::SessionRequest> received();
  std::vector<v1::TrainerEvent> events(const v1::RunId& run, int rank, v1::RankStream stream);
  // Batches that left a gap, or did not begin or end where a batch may.
  std::vector<std::string> violations();

  // Waits until `condition` is true; it may call the functions above. False after kAwaitLimit.
  bool await(const std::function<bool()>& condition);
  // Waits for a message for which `match` is true, `count` of them in all.
  bool await_message(const std::function<bool(const v1::SessionRequest&)>& match, int count = 1);

 private:
  using Stream = grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>;
  // Job, attempt, rank, stream.
  using StreamKey = std::tuple<std::string, int, int, int>;
  struct Committed {
    int64_t offset = 0;
    std::vector<v1::TrainerEvent> events;
  };

  grpc::Status Session(grpc::ServerContext* context, Stream* stream) override;
  v1::SessionResponse welcome(const v1::Hello& hello);
  void commit(const v1::EventBatch& batch);

  const std::filesystem::path socket_;
  std::unique_ptr<grpc::Server> server_;

  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  Stream* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  bool aborted_ = false;
  bool acks_held_ = false;
  bool deaf_ = false;
  int64_t epoch_ = 0;
  std::vector<v1::SessionRequest> received_;
  std::map<StreamKey, Committed> committed_;
  std::set<std::pair<std::string, int>> forgotten_;
  std::vector<std::string> violations_;
};

}  // namespace tessera::agent
