// WatchJob: the events of a job, stored ones first, then live ones, each once and in order.
//
// A watcher goes at its own pace: it holds one page of events and a position, never a queue of what
// it has not sent. One that has sent all there was is handed the events of the next commit, where
// these are the ones that follow, and no more than a page; any other one reads its pages from the
// store. One thread does that for all, so that neither commits nor gRPC's threads wait for it.
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
struct WatchNews;

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
  // A watcher that wants its next page: these events, or (null) those that are stored.
  struct Turn {
    std::shared_ptr<Watcher> watcher;
    std::shared_ptr<const WatchNews> news;
  };

  void run();
  void enqueue(Turn turn);
  void remove(const std::shared_ptr<Watcher>& watcher);

  Reader& reader_;
  const Clock& clock_;
  RpcMetrics& metrics_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  std::map<int64_t, std::set<std::shared_ptr<Watcher>>> watchers_;  // by job
  size_t num_watchers_ = 0;
  std::deque<Turn> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::server
