#include "server/jobs/store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr const char* kSchema = R"sql(
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  state INTEGER NOT NULL,
  request_id TEXT NOT NULL UNIQUE,
  submitted BLOB NOT NULL,
  record BLOB NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE TABLE events (
  revision INTEGER PRIMARY KEY,
  job INTEGER NOT NULL REFERENCES jobs (number),
  event BLOB NOT NULL
);
CREATE INDEX events_by_job ON events (job, revision);
CREATE TABLE cursors (
  job INTEGER NOT NULL REFERENCES jobs (number),
  attempt INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  stream INTEGER NOT NULL,
  "offset" INTEGER NOT NULL,
  PRIMARY KEY (job, attempt, rank, stream)
) WITHOUT ROWID;
CREATE TABLE nodes (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
)sql";

// What version 2 adds.
constexpr const char* kSchema2 = R"sql(
CREATE TABLE peak_ratios (device TEXT PRIMARY KEY, ratio REAL NOT NULL) WITHOUT ROWID;
)sql";

// What version 3 adds. The time of the mean is in milliseconds since 1970.
constexpr const char* kSchema3 = R"sql(
CREATE TABLE projects (
  name TEXT PRIMARY KEY,
  project BLOB NOT NULL,
  mean REAL NOT NULL,
  mean_time INTEGER NOT NULL
) WITHOUT ROWID;
)sql";

// What version 4 changes: by name only jobs that have not ended are looked up, and a name may have
// a million others.
std::string schema4() {
  return absl::StrCat(
      "DROP INDEX IF EXISTS jobs_by_name;"
      "CREATE INDEX unfinished_jobs_by_name ON jobs (name) WHERE state NOT IN (",
      ended_states(), ")");
}

// What version 5 adds: what all coordinators that use the database agree on.
constexpr const char* kSchema5 = R"sql(
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
)sql";

// What one job counts in the mean of a device's ratios.
constexpr double kRatioWeight = 0.25;

// Records of one read: a service may have a hundred thousand.
constexpr int kRecordsPerRead = 1024;

// Of "tessera.db".
const Schema& schema() {
  static const Schema schema{"tessera", {kSchema, kSchema2, kSchema3, schema4(), kSchema5}};
  return schema;
}

int64_t number_of(Database& database, const std::string& sql) {
  int64_t number = 0;
  database.read(sql, {}, [&](const Row& row) {
    number = row.integer(0);
    return true;
  });
  return number;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::open(Storage& storage) {
  return on(storage.open(schema()));
}

absl::StatusOr<std::unique_ptr<Store>> Store::open(const std::filesystem::path& path) {
  return on(open_sqlite(path, schema()));
}

absl::StatusOr<std::unique_ptr<Store>> Store::on(
    absl::StatusOr<std::unique_ptr<Database>> database) {
  if (!database.ok()) return database.status();
  return std::unique_ptr<Store>(new Store(*std::move(database)));
}

Store::Store(std::unique_ptr<Database> database)
    : database_(std::move(database)),
      queries_(std::make_unique<Queries>(*database_)),
      revision_(number_of(*database_, "SELECT coalesce(max(revision), 0) FROM events")),
      number_(number_of(*database_, "SELECT coalesce(max(number), 0) FROM jobs")) {}

void Store::commit() { database_->commit(); }

void Store::insert(JobRecord& record, const std::string& request_id, const v1::JobSpec& submitted) {
  record.set_number(++number_);
  const std::string spec = submitted.SerializeAsString();
  const std::string bytes = record.SerializeAsString();
  database_->write(
      "INSERT INTO jobs (number, id, name, state, request_id, submitted, record) "
      "VALUES (?, ?, ?, ?, ?, ?, ?)",
      {record.number(), record.job().id(), record.job().spec().name(), record.job().state(),
       request_id, Blob{spec}, Blob{bytes}});
}

void Store::update(const JobRecord& record) {
  const std::string bytes = record.SerializeAsString();
  database_->write("UPDATE jobs SET state = ?, record = ? WHERE number = ?",
                   {record.job().state(), Blob{bytes}, record.number()});
}

void Store::append(int64_t number, v1::Event& event) {
  event.set_revision(++revision_);
  const std::string bytes = event.SerializeAsString();
  database_->write("INSERT INTO events (revision, job, event) VALUES (?, ?, ?)",
                   {event.revision(), number, Blob{bytes}});
}

int64_t Store::cursor(int64_t number, const v1::Cursor& cursor) {
  int64_t offset = 0;
  database_->read(
      "SELECT \"offset\" FROM cursors WHERE job = ? AND attempt = ? AND rank = ? AND stream = ?",
      {number, cursor.run().attempt(), cursor.rank(), cursor.stream()}, [&](const Row& row) {
        offset = row.integer(0);
        return true;
      });
  return offset;
}

void Store::set_cursor(int64_t number, const v1::Cursor& cursor) {
  database_->write(
      "INSERT INTO cursors (job, attempt, rank, stream, \"offset\") VALUES (?, ?, ?, ?, ?) "
      "ON CONFLICT (job, attempt, rank, stream) DO UPDATE SET \"offset\" = excluded.\"offset\"",
      {number, cursor.run().attempt(), cursor.rank(), cursor.stream(), cursor.offset()});
}

int64_t Store::next_epoch(const std::string& node) {
  int64_t epoch = 1;
  database_->read("SELECT epoch FROM nodes WHERE name = ?", {node}, [&](const Row& row) {
    epoch = row.integer(0) + 1;
    return true;
  });
  database_->write(
      "INSERT INTO nodes (name, epoch) VALUES (?, ?) "
      "ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch",
      {node, epoch});
  return epoch;
}

std::optional<Submission> Store::submission(const std::string& request_id) {
  std::optional<Submission> submission;
  database_->read(
      "SELECT id, submitted FROM jobs WHERE request_id = ?", {request_id}, [&](const Row& row) {
        submission.emplace(Submission{std::string(row.bytes(0)), parse<v1::JobSpec>(row, 1)});
        return true;
      });
  return submission;
}

v1::JobSpec Store::submitted(int64_t number) {
  v1::JobSpec spec;
  database_->read("SELECT submitted FROM jobs WHERE number = ?", {number}, [&](const Row& row) {
    spec = parse<v1::JobSpec>(row, 0);
    return true;
  });
  return spec;
}

double Store::peak_ratio(const std::string& device) {
  double ratio = 1;
  database_->read("SELECT ratio FROM peak_ratios WHERE device = ?", {device}, [&](const Row& row) {
    ratio = row.real(0);
    return true;
  });
  return ratio;
}

double Store::add_peak_ratio(const std::string& device, double ratio) {
  const double before = peak_ratio(device);
  const double mean = before + kRatioWeight * (ratio - before);
  database_->write(
      "INSERT INTO peak_ratios (device, ratio) VALUES (?, ?) "
      "ON CONFLICT (device) DO UPDATE SET ratio = excluded.ratio",
      {device, mean});
  return mean;
}

void Store::put_project(const StoredProject& project) {
  const std::string bytes = project.project.SerializeAsString();
  database_->write(
      "INSERT INTO projects (name, project, mean, mean_time) VALUES (?, ?, ?, ?) "
      "ON CONFLICT (name) DO UPDATE SET project = excluded.project, mean = excluded.mean, "
      "mean_time = excluded.mean_time",
      {project.project.name(), Blob{bytes}, project.mean, absl::ToUnixMillis(project.mean_time)});
}

std::vector<StoredProject> Store::projects() {
  std::vector<StoredProject> projects;
  database_->read("SELECT project, mean, mean_time FROM projects", {}, [&](const Row& row) {
    projects.push_back(
        {parse<v1::Project>(row, 0), row.real(1), absl::FromUnixMillis(row.integer(2))});
    return true;
  });
  return projects;
}

std::string Store::setting(const std::string& name) {
  std::string value;
  database_->read("SELECT value FROM settings WHERE name = ?", {name}, [&](const Row& row) {
    value = row.bytes(0);
    return true;
  });
  return value;
}

void Store::set_setting(const std::string& name, const std::string& value) {
  database_->write(
      "INSERT INTO settings (name, value) VALUES (?, ?) "
      "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
      {name, value});
}

std::vector<JobRecord> Store::unfinished() {
  std::vector<JobRecord> records;
  // By the index of states: the table is as long as the service is old.
  for (int state = v1::Job::State_MIN; state <= v1::Job::State_MAX; ++state) {
    if (!is_terminal(static_cast<v1::Job::State>(state))) append_in_state(state, records);
  }
  std::sort(records.begin(), records.end(),
            [](const JobRecord& a, const JobRecord& b) { return a.number() < b.number(); });
  return records;
}

void Store::append_in_state(int state, std::vector<JobRecord>& records) {
  int64_t after = 0;
  int num_read = 0;
  do {
    num_read = 0;
    database_->read(
        "SELECT record FROM jobs WHERE state = ? AND number > ? ORDER BY number LIMIT ?",
        {state, after, kRecordsPerRead}, [&](const Row& row) {
          after = records.emplace_back(parse<JobRecord>(row, 0)).number();
          ++num_read;
          return true;
        });
  } while (num_read == kRecordsPerRead);
}

Reader::Reader(Storage& storage) : Reader(storage.open_reader(schema())) {}

Reader::Reader(const std::filesystem::path& path) : Reader(open_sqlite_reader(path)) {}

}  // namespace tessera::server
