// Reads of the store, over one connection.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "jobs/record.pb.h"
#include "server/jobs/database.h"
#include "tessera/v1/coordinator.pb.h"

namespace tessera::server {

// Of a page of events, unless less is asked for.
inline constexpr int kMaxEventsPerPage = 256;
inline constexpr int64_t kMaxEventBytesPerPage = 2 << 20;

struct JobPage {
  std::vector<JobRecord> records;
  // There are older ones.
  bool more = false;
};

// States of jobs that have ended, as SQL's IN takes them.
std::string ended_states();

// Not thread safe. Throws DatabaseError when the database cannot be read.
class Queries {
 public:
  explicit Queries(Database& database) : database_(database) {}

  // The job of an id, or the one unfinished job of a name. NOT_FOUND, or FAILED_PRECONDITION where
  // several unfinished jobs have the name.
  absl::StatusOr<JobRecord> find(const std::string& id_or_name);

  // Newest first, numbers below `before`; all states if `states` is empty. At most `limit` records,
  // fewer where their sum would pass kMaxPageBytes.
  JobPage list(int64_t before, const std::vector<v1::Job::State>& states, int limit);

  // Events of a job with revisions of at least `start`, in order: a page of at most `max_events`,
  // which ends with the event that makes it `max_bytes` or more.
  std::vector<v1::Event> events(int64_t number, int64_t start, int max_events = kMaxEventsPerPage,
                                int64_t max_bytes = kMaxEventBytesPerPage);

  // The last `limit` events, in order.
  std::vector<v1::Event> last_events(int64_t number, int limit);

  v1::Job::State state(int64_t number);

  std::map<v1::Job::State, int64_t> count_by_state();

 private:
  Database& database_;
};

}  // namespace tessera::server
