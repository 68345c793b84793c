#include "server/jobs/queries.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr int64_t kMaxPageBytes = 2 << 20;

template <typename Message>
Message parse(const SQLite::Column& column) {
  Message message;
  if (!message.ParseFromArray(column.getBlob(), column.getBytes())) {
    throw SQLite::Exception("a row of the store does not parse");
  }
  return message;
}

// Steps a statement to its end and leaves it ready for the next use.
template <typename Visit>
void each_row(SQLite::Statement& statement, Visit visit) {
  while (statement.executeStep() && visit(statement)) {
  }
  statement.reset();
}

}  // namespace

Queries::Queries(SQLite::Database& database)
    : database_(database),
      by_id_(database, "SELECT record FROM jobs WHERE id = ?"),
      by_name_(database, absl::StrCat("SELECT record FROM jobs WHERE name = ? AND state NOT IN (",
                                      v1::Job::SUCCEEDED, ",", v1::Job::FAILED, ",",
                                      v1::Job::CANCELLED, ") LIMIT 3")),
      events_(database,
              "SELECT event FROM events WHERE job = ? AND revision >= ? ORDER BY revision LIMIT ?"),
      last_events_(database,
                   "SELECT event FROM events WHERE job = ? ORDER BY revision DESC LIMIT ?"),
      state_(database, "SELECT state FROM jobs WHERE number = ?"),
      count_(database, "SELECT state, count(*) FROM jobs GROUP BY state") {}

absl::StatusOr<JobRecord> Queries::find(const std::string& id_or_name) {
  std::vector<JobRecord> found;
  const auto collect = [&](SQLite::Statement& row) {
    found.push_back(parse<JobRecord>(row.getColumn(0)));
    return true;
  };
  by_id_.bind(1, id_or_name);
  each_row(by_id_, collect);
  if (found.empty()) {
    by_name_.bind(1, id_or_name);
    each_row(by_name_, collect);
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
  SQLite::Statement statement(database_, sql + " ORDER BY number DESC LIMIT ?");
  statement.bind(1, before);
  statement.bind(2, limit + 1);
  JobPage page;
  int64_t bytes = 0;
  each_row(statement, [&](SQLite::Statement& row) {
    bytes += row.getColumn(0).getBytes();
    page.more = static_cast<int>(page.records.size()) == limit ||
                (bytes > kMaxPageBytes && !page.records.empty());
    if (!page.more) page.records.push_back(parse<JobRecord>(row.getColumn(0)));
    return !page.more;
  });
  return page;
}

std::vector<v1::Event> Queries::events(int64_t number, int64_t start, int max_events,
                                       int64_t max_bytes) {
  std::vector<v1::Event> events;
  int64_t bytes = 0;
  events_.bind(1, number);
  events_.bind(2, start);
  events_.bind(3, max_events);
  each_row(events_, [&](SQLite::Statement& row) {
    events.push_back(parse<v1::Event>(row.getColumn(0)));
    bytes += row.getColumn(0).getBytes();
    return bytes < max_bytes;
  });
  return events;
}

std::vector<v1::Event> Queries::last_events(int64_t number, int limit) {
  std::vector<v1::Event> events;
  last_events_.bind(1, number);
  last_events_.bind(2, limit);
  each_row(last_events_, [&](SQLite::Statement& row) {
    events.push_back(parse<v1::Event>(row.getColumn(0)));
    return true;
  });
  std::reverse(events.begin(), events.end());
  return events;
}

v1::Job::State Queries::state(int64_t number) {
  auto state = v1::Job::STATE_UNSPECIFIED;
  state_.bind(1, number);
  each_row(state_, [&](SQLite::Statement& row) {
    state = static_cast<v1::Job::State>(row.getColumn(0).getInt());
    return true;
  });
  return state;
}

std::map<v1::Job::State, int64_t> Queries::count_by_state() {
  std::map<v1::Job::State, int64_t> counts;
  each_row(count_, [&](SQLite::Statement& row) {
    counts[static_cast<v1::Job::State>(row.getColumn(0).getInt())] = row.getColumn(1).getInt64();
    return true;
  });
  return counts;
}

}  // namespace tessera::server
