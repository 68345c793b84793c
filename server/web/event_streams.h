// The events of a job as server-sent events: stored ones first, then live ones, each once and in
// order, with its revision as id.
//
// As with WatchJob a watcher reads from the store at its own pace: it holds one page of events and
// a position, never a queue of what it has not sent. Each occupies a thread of the HTTP server.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "server/jobs/job_table.h"
#include "server/jobs/store.h"
#include "server/security/open_calls.h"

namespace tessera::server {

class EventStreams;

// One watcher, used by one thread, and by others that interrupt it.
class EventStream : public OpenCall {
 public:
  enum class Progress {
    kOpen,
    // Everything was told, it was interrupted, or the server stops.
    kEnded,
    // `write` said no.
    kGone,
  };
  // False: the peer is gone, or too slow.
  using Write = std::function<bool(std::string_view)>;

  // Writes the next events, or waits for some, at most until a heartbeat is due and written. The
  // job's last event is followed by one of type "end"; an interruption is one of type "refused".
  // Throws DatabaseError.
  Progress advance(const Write& write);

  void interrupt(const absl::Status& status) override;

 private:
  friend class EventStreams;
  EventStream(EventStreams& streams, int64_t job, int64_t next)
      : streams_(streams), job_(job), next_revision_(next) {}

  Progress await_news(const Write& write);

  EventStreams& streams_;
  const int64_t job_;
  int64_t next_revision_;
  std::condition_variable wake_;
  // Guarded by streams_.mutex_.
  bool dirty_ = false;
  absl::Status interruption_;
};

// Thread safe.
class EventStreams {
 public:
  static constexpr size_t kMaxStreams = 64;

  explicit EventStreams(Reader& reader) : reader_(reader) {}

  // Events with revisions above `after` of the job with this number. The stream counts as open
  // until it is released. nullptr: there are kMaxStreams already.
  std::shared_ptr<EventStream> open(int64_t job, int64_t after);

  // These jobs have new events, committed.
  void notify(const std::vector<JobChange>& changes);

  // Ends all streams, now and from now on. Idempotent.
  void stop();

  size_t num_open();

 private:
  friend class EventStream;
  void remove(EventStream* stream);

  Reader& reader_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<int64_t, std::set<EventStream*>> streams_;  // by job
  size_t num_open_ = 0;
  bool stopping_ = false;
};

}  // namespace tessera::server
