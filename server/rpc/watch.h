// WatchJob: the events of a job, stored ones first, then live ones, each once and in order.
//
// A watcher always reads from the store, at its own pace: it holds one page of events and a
// position, never a queue of what it has not sent. A commit only tells idle watchers that there is
// more. One thread does all the reading, so that neither commits nor gRPC's threads wait for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "server/jobs/clock.h"
#include "server/jobs/job_table.h"
#include "server/jobs/store.h"
#include "server/security/open_calls.h"
#include "server/telemetry/rpc_metrics.h"
#include "tessera/v1/coordinator.grpc.pb.h"

namespace tessera::server {

class Watcher;

// Thread safe.
class WatchHub {
 public:
  using Reactor = grpc::ServerWriteReactor<v1::WatchJobResponse>;

  WatchHub(Reader& reader, const Clock& clock, RpcMetrics& metrics);
  ~WatchHub() { stop(); }

  // Answers a WatchJob call. `opened` is told of it, unless it is refused.
  Reactor* watch(const v1::WatchJobRequest& request,
                 const std::function<void(std::weak_ptr<OpenCall>)>& opened);

  // These jobs have new events, committed.
  void notify(const std::vector<JobChange>& changes);

  // Ends all watches with UNAVAILABLE, and refuses new ones. Idempotent.
  void stop();

 private:
  friend class Watcher;
  void run();
  // The watcher wants its next page.
  void enqueue(std::shared_ptr<Watcher> watcher);
  void remove(const std::shared_ptr<Watcher>& watcher);

  Reader& reader_;
  const Clock& clock_;
  RpcMetrics& metrics_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::map<int64_t, std::set<std::shared_ptr<Watcher>>> watchers_;  // by job
  size_t num_watchers_ = 0;
  std::deque<std::shared_ptr<Watcher>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::server
