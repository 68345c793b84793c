#include "server/jobs/store.h"

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"

namespace tessera::server {
namespace {

constexpr int kSchemaVersion = 3;
constexpr int kBusyTimeoutMs = 10'000;

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
CREATE INDEX jobs_by_name ON jobs (name);
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
  offset INTEGER NOT NULL,
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

// What one job counts in the mean of a device's ratios.
constexpr double kRatioWeight = 0.25;

void bind(SQLite::Statement& statement, int index, const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  statement.bind(index, bytes.data(), static_cast<int>(bytes.size()));
}

void bind_cursor(SQLite::Statement& statement, int64_t number, const v1::Cursor& cursor) {
  statement.bind(1, number);
  statement.bind(2, cursor.run().attempt());
  statement.bind(3, cursor.rank());
  statement.bind(4, cursor.stream());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::open(const std::filesystem::path& path) {
  try {
    std::unique_ptr<Store> store(new Store(path));
    const int version = store->database_.execAndGet("PRAGMA user_version").getInt();
    if (version < 0 || version > kSchemaVersion) {
      return error(absl::StatusCode::kFailedPrecondition, "SCHEMA_VERSION",
                   absl::StrCat(path.string(), " has schema version ", version,
                                ", this tesserad knows version ", kSchemaVersion));
    }
    if (version < kSchemaVersion) {
      SQLite::Transaction transaction(store->database_);
      if (version < 1) store->database_.exec(kSchema);
      if (version < 2) store->database_.exec(kSchema2);
      store->database_.exec(kSchema3);
      store->database_.exec(absl::StrCat("PRAGMA user_version = ", kSchemaVersion));
      transaction.commit();
    }
    store->prepare();
    return store;
  } catch (const SQLite::Exception& failure) {
    return error(absl::StatusCode::kInternal, "STORE",
                 absl::StrCat(path.string(), ": ", failure.what()));
  }
}

Store::Store(const std::filesystem::path& path)
    : database_(path.string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, kBusyTimeoutMs) {
  database_.exec("PRAGMA journal_mode = WAL");
  database_.exec("PRAGMA synchronous = FULL");
  database_.exec("PRAGMA foreign_keys = ON");
}

void Store::prepare() {
  revision_ = database_.execAndGet("SELECT coalesce(max(revision), 0) FROM events").getInt64();
  queries_ = std::make_unique<Queries>(database_);
  insert_.emplace(database_,
                  "INSERT INTO jobs (number, id, name, state, request_id, submitted, record) "
                  "VALUES (?, ?, ?, ?, ?, ?, ?)");
  update_.emplace(database_, "UPDATE jobs SET state = ?, record = ? WHERE number = ?");
  append_.emplace(database_, "INSERT INTO events (revision, job, event) VALUES (?, ?, ?)");
  get_cursor_.emplace(database_,
                      "SELECT offset FROM cursors WHERE job = ? AND attempt = ? AND rank = ? AND "
                      "stream = ?");
  set_cursor_.emplace(database_,
                      "INSERT OR REPLACE INTO cursors (job, attempt, rank, stream, offset) VALUES "
                      "(?, ?, ?, ?, ?)");
  epoch_.emplace(database_,
                 "INSERT INTO nodes (name, epoch) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET "
                 "epoch = epoch + 1 RETURNING epoch");
}

SQLite::Statement& Store::writing(SQLite::Statement& statement) {
  if (!transaction_) transaction_.emplace(database_, SQLite::TransactionBehavior::IMMEDIATE);
  return statement;
}

void Store::commit() {
  if (!transaction_) return;
  transaction_->commit();
  transaction_.reset();
}

void Store::insert(JobRecord& record, const std::string& request_id, const v1::JobSpec& submitted) {
  record.set_number(
      database_.execAndGet("SELECT coalesce(max(number), 0) + 1 FROM jobs").getInt64());
  SQLite::Statement& statement = writing(*insert_);
  statement.bind(1, record.number());
  statement.bind(2, record.job().id());
  statement.bind(3, record.job().spec().name());
  statement.bind(4, record.job().state());
  statement.bind(5, request_id);
  bind(statement, 6, submitted);
  bind(statement, 7, record);
  statement.exec();
  statement.reset();
}

void Store::update(const JobRecord& record) {
  SQLite::Statement& statement = writing(*update_);
  statement.bind(1, record.job().state());
  bind(statement, 2, record);
  statement.bind(3, record.number());
  statement.exec();
  statement.reset();
}

void Store::append(int64_t number, v1::Event& event) {
  event.set_revision(++revision_);
  SQLite::Statement& statement = writing(*append_);
  statement.bind(1, event.revision());
  statement.bind(2, number);
  bind(statement, 3, event);
  statement.exec();
  statement.reset();
}

int64_t Store::cursor(int64_t number, const v1::Cursor& cursor) {
  bind_cursor(*get_cursor_, number, cursor);
  const int64_t offset = get_cursor_->executeStep() ? get_cursor_->getColumn(0).getInt64() : 0;
  get_cursor_->reset();
  return offset;
}

void Store::set_cursor(int64_t number, const v1::Cursor& cursor) {
  SQLite::Statement& statement = writing(*set_cursor_);
  bind_cursor(statement, number, cursor);
  statement.bind(5, cursor.offset());
  statement.exec();
  statement.reset();
}

int64_t Store::next_epoch(const std::string& node) {
  SQLite::Statement& statement = writing(*epoch_);
  statement.bind(1, node);
  statement.executeStep();
  const int64_t epoch = statement.getColumn(0).getInt64();
  while (statement.executeStep()) {
  }
  statement.reset();
  return epoch;
}

std::optional<Submission> Store::submission(const std::string& request_id) {
  SQLite::Statement statement(database_, "SELECT id, submitted FROM jobs WHERE request_id = ?");
  statement.bind(1, request_id);
  if (!statement.executeStep()) return std::nullopt;
  Submission submission{statement.getColumn(0).getString(), {}};
  const SQLite::Column spec = statement.getColumn(1);
  if (!submission.spec.ParseFromArray(spec.getBlob(), spec.getBytes())) {
    throw SQLite::Exception("a submitted spec in the store does not parse");
  }
  return submission;
}

v1::JobSpec Store::submitted(int64_t number) {
  SQLite::Statement statement(database_, "SELECT submitted FROM jobs WHERE number = ?");
  statement.bind(1, number);
  v1::JobSpec spec;
  if (!statement.executeStep()) return spec;
  const SQLite::Column column = statement.getColumn(0);
  if (!spec.ParseFromArray(column.getBlob(), column.getBytes())) {
    throw SQLite::Exception("a submitted spec in the store does not parse");
  }
  return spec;
}

double Store::peak_ratio(const std::string& device) {
  SQLite::Statement statement(database_, "SELECT ratio FROM peak_ratios WHERE device = ?");
  statement.bind(1, device);
  return statement.executeStep() ? statement.getColumn(0).getDouble() : 1;
}

double Store::add_peak_ratio(const std::string& device, double ratio) {
  const double before = peak_ratio(device);
  const double mean = before + kRatioWeight * (ratio - before);
  SQLite::Statement statement(database_, "INSERT OR REPLACE INTO peak_ratios VALUES (?, ?)");
  statement.bind(1, device);
  statement.bind(2, mean);
  writing(statement).exec();
  return mean;
}

void Store::put_project(const StoredProject& project) {
  SQLite::Statement statement(database_, "INSERT OR REPLACE INTO projects VALUES (?, ?, ?, ?)");
  statement.bind(1, project.project.name());
  bind(statement, 2, project.project);
  statement.bind(3, project.mean);
  statement.bind(4, absl::ToUnixMillis(project.mean_time));
  writing(statement).exec();
}

std::vector<StoredProject> Store::projects() {
  std::vector<StoredProject> projects;
  SQLite::Statement statement(database_, "SELECT project, mean, mean_time FROM projects");
  while (statement.executeStep()) {
    StoredProject& stored = projects.emplace_back();
    const SQLite::Column column = statement.getColumn(0);
    if (!stored.project.ParseFromArray(column.getBlob(), column.getBytes())) {
      throw SQLite::Exception("a project in the store does not parse");
    }
    stored.mean = statement.getColumn(1).getDouble();
    stored.mean_time = absl::FromUnixMillis(statement.getColumn(2).getInt64());
  }
  return projects;
}

std::vector<JobRecord> Store::unfinished() {
  std::vector<JobRecord> records;
  SQLite::Statement statement(
      database_, absl::StrCat("SELECT record FROM jobs WHERE state NOT IN (", v1::Job::SUCCEEDED,
                              ",", v1::Job::FAILED, ",", v1::Job::CANCELLED, ") ORDER BY number"));
  while (statement.executeStep()) {
    const SQLite::Column column = statement.getColumn(0);
    if (!records.emplace_back().ParseFromArray(column.getBlob(), column.getBytes())) {
      throw SQLite::Exception("a job in the store does not parse");
    }
  }
  return records;
}

Reader::Reader(const std::filesystem::path& path)
    : database_(path.string(), SQLite::OPEN_READONLY, kBusyTimeoutMs), queries_(database_) {}

}  // namespace tessera::server
