// The histories of the jobs that are looked at, kept so that the next look reads only what is new.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "server/jobs/clock.h"
#include "server/jobs/store.h"
#include "server/telemetry/history.h"

namespace tessera::server {

// Thread safe. Holds the jobs looked at last, kMaxKnownJobs of them.
class Histories {
 public:
  static constexpr size_t kMaxKnownJobs = 16;

  Histories(Reader& reader, const Clock& clock) : reader_(reader), clock_(clock) {}

  // Everything committed when it was called, of the job with this number; is_partial where reading
  // that took longer than `patience`. At most kMaxHistoryPoints points. Throws DatabaseError.
  JobHistory get(int64_t number, size_t max_points, int rank,
                 absl::Duration patience = absl::Seconds(1));

 private:
  struct Entry {
    explicit Entry(int64_t number) : number(number) {}
    const int64_t number;
    std::mutex mutex;
    History history;  // guarded by mutex
  };

  std::shared_ptr<Entry> entry(int64_t number);

  Reader& reader_;
  const Clock& clock_;
  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // the latest first; guarded by mutex_
};

}  // namespace tessera::server
