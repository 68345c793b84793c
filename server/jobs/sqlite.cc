#include "server/jobs/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <unordered_map>

#include <SQLiteCpp/SQLiteCpp.h>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

constexpr int kBusyTimeoutMs = 10'000;
// Prepared ones; with more, all are prepared anew.
constexpr size_t kMaxStatements = 64;
// Less than this is a full disk: the next rounds would not fit.
constexpr off_t kRoom = 1 << 20;
// A page of the database and its place in the log. SQLite has no one code for a full disk: where
// its shared memory does not fit it says "disk I/O error".
constexpr uintmax_t kLeastRoom = 16 << 10;

bool has_no_room(const std::filesystem::path& path) {
  std::error_code unknown;
  const auto space = std::filesystem::space(path.parent_path(), unknown);
  return !unknown && space.available < kLeastRoom;
}

// What the disk did, and what is not the disk's: the file is damaged, or we are wrong.
[[noreturn]] void rethrow(const SQLite::Exception& failure, const std::filesystem::path& path) {
  const std::string what = absl::StrCat(path.string(), ": ", failure.what());
  switch (failure.getErrorCode() & 0xff) {
    case SQLITE_FULL:
      throw DiskFull(what);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_BUSY:
    case SQLITE_PROTOCOL:
      if (has_no_room(path)) throw DiskFull(what);
      throw DiskFailed(what);
    default:
      throw DatabaseError(what);
  }
}

// Throws DatabaseLost: the disk that `path` is on has none.
void try_room(const std::filesystem::path& path) {
  const std::string room = path.string() + "-room";
  const int fd = ::open(room.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  int failed = fd < 0 ? errno : ::posix_fallocate(fd, 0, kRoom);
  if (failed == 0 && ::fsync(fd) != 0) failed = errno;
  if (fd >= 0) {
    ::close(fd);
    ::unlink(room.c_str());
  }
  if (failed == 0) return;
  const std::string what = absl::StrCat(room, ": ", std::strerror(failed));
  if (failed == ENOSPC) throw DiskFull(what);
  throw DiskFailed(what);
}

class SqliteRow final : public Row {
 public:
  explicit SqliteRow(SQLite::Statement& statement) : statement_(statement) {}
  int64_t integer(int column) const override { return statement_.getColumn(column).getInt64(); }
  double real(int column) const override { return statement_.getColumn(column).getDouble(); }
  std::string_view bytes(int column) const override {
    const SQLite::Column value = statement_.getColumn(column);
    return {static_cast<const char*>(value.getBlob()), static_cast<size_t>(value.getBytes())};
  }

 private:
  SQLite::Statement& statement_;
};

// Each value stays where it is until the statement is reset.
struct Binder {
  SQLite::Statement& statement;
  int index = 0;

  void operator()(int64_t value) { statement.bind(index, value); }
  void operator()(double value) { statement.bind(index, value); }
  void operator()(std::string_view text) { statement.bind(index, std::string(text)); }
  void operator()(Blob blob) {
    // An empty view may have no address, which would be NULL.
    const char* bytes = blob.bytes.empty() ? "" : blob.bytes.data();
    statement.bindNoCopy(index, bytes, static_cast<int>(blob.bytes.size()));
  }
};

class SqliteDatabase final : public Database {
 public:
  SqliteDatabase(const std::filesystem::path& path, int flags)
      : path_(path), database_(path.string(), flags, kBusyTimeoutMs) {}

  void write(const std::string& sql, Parameters parameters) override {
    guarded([&] {
      if (!transaction_) transaction_.emplace(database_, SQLite::TransactionBehavior::IMMEDIATE);
      SQLite::Statement& statement = bound(sql, parameters);
      statement.exec();
      statement.reset();
    });
  }

  void commit() override {
    if (!transaction_) return;
    guarded([&] { transaction_->commit(); });
    transaction_.reset();
  }

  void read(const std::string& sql, Parameters parameters, Visit visit) override {
    guarded([&] {
      SQLite::Statement& statement = bound(sql, parameters);
      const SqliteRow row(statement);
      while (statement.executeStep() && visit(row)) {
      }
      statement.reset();
    });
  }

  // A transaction that changes nothing, and yet has to reach the disk.
  void touch() {
    guarded([&] {
      SQLite::Transaction transaction(database_, SQLite::TransactionBehavior::IMMEDIATE);
      database_.exec(absl::StrCat("PRAGMA user_version = ", version()));
      transaction.commit();
    });
  }

  int64_t version() { return database_.execAndGet("PRAGMA user_version").getInt64(); }

  void prepare_to_write() {
    database_.exec("PRAGMA journal_mode = WAL");
    database_.exec("PRAGMA synchronous = FULL");
    database_.exec("PRAGMA foreign_keys = ON");
  }

  void upgrade(int64_t version, const Schema& schema) {
    SQLite::Transaction transaction(database_);
    for (auto step = schema.steps.begin() + version; step != schema.steps.end(); ++step) {
      database_.exec(*step);
    }
    database_.exec(absl::StrCat("PRAGMA user_version = ", schema.steps.size()));
    transaction.commit();
  }

 private:
  template <typename Act>
  void guarded(Act act) {
    try {
      act();
    } catch (const SQLite::Exception& failure) {
      statements_.clear();
      transaction_.reset();
      rethrow(failure, path_);
    }
  }

  SQLite::Statement& bound(const std::string& sql, Parameters parameters) {
    auto found = statements_.find(sql);
    if (found == statements_.end()) {
      if (statements_.size() >= kMaxStatements) statements_.clear();
      found = statements_.try_emplace(sql, database_, sql).first;
    }
    // Whoever looked at its rows may have thrown.
    found->second.tryReset();
    Binder binder{found->second};
    for (const Parameter& parameter : parameters) {
      ++binder.index;
      std::visit(binder, parameter);
    }
    return found->second;
  }

  const std::filesystem::path path_;
  SQLite::Database database_;
  std::optional<SQLite::Transaction> transaction_;
  std::unordered_map<std::string, SQLite::Statement> statements_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Database>> open_sqlite(const std::filesystem::path& path,
                                                      const Schema& schema) {
  try {
    auto database =
        std::make_unique<SqliteDatabase>(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    database->prepare_to_write();
    const int64_t version = database->version();
    if (absl::Status status = check_version(path.string(), version, schema); !status.ok()) {
      return status;
    }
    if (version < static_cast<int64_t>(schema.steps.size())) database->upgrade(version, schema);
    return database;
  } catch (const SQLite::Exception& failure) {
    try {
      rethrow(failure, path);
    } catch (const DatabaseError& known) {
      return to_status(known);
    }
  }
}

std::unique_ptr<Database> open_sqlite_reader(const std::filesystem::path& path) {
  try {
    return std::make_unique<SqliteDatabase>(path, SQLite::OPEN_READONLY);
  } catch (const SQLite::Exception& failure) {
    rethrow(failure, path);
  }
}

void try_writing(const std::filesystem::path& path) {
  try_room(path);
  try {
    SqliteDatabase(path, SQLite::OPEN_READWRITE).touch();
  } catch (const SQLite::Exception& failure) {
    rethrow(failure, path);
  }
}

absl::StatusOr<std::unique_ptr<Database>> SqliteStorage::open(const Schema& schema) {
  return open_sqlite(path_of(schema), schema);
}

std::unique_ptr<Database> SqliteStorage::open_reader(const Schema& schema) {
  return open_sqlite_reader(path_of(schema));
}

}  // namespace tessera::server
