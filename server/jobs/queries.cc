#include "server/jobs/queries.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr int64_t kMaxPageBytes = 2 << 20;

}  // namespace

std::string ended_states() {
  return absl::StrCat(v1::Job::SUCCEEDED, ",", v1::Job::FAILED, ",", v1::Job::CANCELLED);
}

absl::StatusOr<JobRecord> Queries::find(const std::string& id_or_name) {
  std::vector<JobRecord> found;
  const auto collect = [&](const Row& row) {
    found.push_back(parse<JobRecord>(row, 0));
    return true;
  };
  database_.read("SELECT record FROM jobs WHERE id = ?", {id_or_name}, collect);
  if (found.empty()) {
    database_.read(absl::StrCat("SELECT record FROM jobs WHERE name = ? AND state NOT IN (",
                                ended_states(), ") LIMIT 3"),
                   {id_or_name}, collect);
  }
  if (found.size() == 1) return std::move(found[0]);
  if (found.empty()) {
    return error(absl::StatusCode::kNotFound, "JOB_NOT_FOUND",
                 absl::StrCat("no job has the id \"", id_or_name,
                              "\", and no unfinished job has that name"));
  }
  const auto id = [](std::string* out, const JobRecord& record) { *out += record.job().id(); };
  return error(absl::StatusCode::kFailedPrecondition, "AMBIGUOUS_NAME",
               absl::StrCat("several unfinished jobs are named \"", id_or_name,
                            "\", give an id: ", absl::StrJoin(found, ", ", id)));
}

JobPage Queries::list(int64_t before, const std::vector<v1::Job::State>& states, int limit) {
  std::string sql = "SELECT record FROM jobs WHERE number < ?";
  if (!states.empty()) {
    absl::StrAppend(&sql, " AND state IN (", absl::StrJoin(states, ","), ")");
  }
  absl::StrAppend(&sql, " ORDER BY number DESC LIMIT ?");
  JobPage page;
  int64_t bytes = 0;
  database_.read(sql, {before, limit + 1}, [&](const Row& row) {
    bytes += static_cast<int64_t>(row.bytes(0).size());
    page.more = static_cast<int>(page.records.size()) == limit ||
                (bytes > kMaxPageBytes && !page.records.empty());
    if (!page.more) page.records.push_back(parse<JobRecord>(row, 0));
    return !page.more;
  });
  return page;
}

std::vector<v1::Event> Queries::events(int64_t number, int64_t start, int max_events,
                                       int64_t max_bytes) {
  std::vector<v1::Event> events;
  int64_t bytes = 0;
  database_.read(
      "SELECT event FROM events WHERE job = ? AND revision >= ? ORDER BY revision LIMIT ?",
      {number, start, max_events}, [&](const Row& row) {
        events.push_back(parse<v1::Event>(row, 0));
        bytes += static_cast<int64_t>(row.bytes(0).size());
        return bytes < max_bytes;
      });
  return events;
}

std::vector<v1::Event> Queries::last_events(int64_t number, int limit) {
  std::vector<v1::Event> events;
  database_.read("SELECT event FROM events WHERE job = ? ORDER BY revision DESC LIMIT ?",
                 {number, limit}, [&](const Row& row) {
                   events.push_back(parse<v1::Event>(row, 0));
                   return true;
                 });
  std::reverse(events.begin(), events.end());
  return events;
}

v1::Job::State Queries::state(int64_t number) {
  auto state = v1::Job::STATE_UNSPECIFIED;
  database_.read("SELECT state FROM jobs WHERE number = ?", {number}, [&](const Row& row) {
    state = static_cast<v1::Job::State>(row.integer(0));
    return true;
  });
  return state;
}

std::map<v1::Job::State, int64_t> Queries::count_by_state() {
  std::map<v1::Job::State, int64_t> counts;
  database_.read("SELECT state, count(*) FROM jobs GROUP BY state", {}, [&](const Row& row) {
    counts[static_cast<v1::Job::State>(row.integer(0))] = row.integer(1);
    return true;
  });
  return counts;
}

}  // namespace tessera::server
