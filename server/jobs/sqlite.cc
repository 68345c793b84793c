#include "server/jobs/sqlite.h"

#include <optional>
#include <unordered_map>

#include <SQLiteCpp/SQLiteCpp.h>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"

namespace tessera::server {
namespace {

constexpr int kBusyTimeoutMs = 10'000;
// Prepared ones; with more, all are prepared anew.
constexpr size_t kMaxStatements = 64;

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
      : database_(path.string(), flags, kBusyTimeoutMs) {}

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
      throw DatabaseError(failure.what());
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
    return error(absl::StatusCode::kInternal, "STORE",
                 absl::StrCat(path.string(), ": ", failure.what()));
  }
}

std::unique_ptr<Database> open_sqlite_reader(const std::filesystem::path& path) {
  try {
    return std::make_unique<SqliteDatabase>(path, SQLite::OPEN_READONLY);
  } catch (const SQLite::Exception& failure) {
    throw DatabaseError(absl::StrCat(path.string(), ": ", failure.what()));
  }
}

absl::StatusOr<std::unique_ptr<Database>> SqliteStorage::open(const Schema& schema) {
  return open_sqlite(path_of(schema), schema);
}

std::unique_ptr<Database> SqliteStorage::open_reader(const Schema& schema) {
  return open_sqlite_reader(path_of(schema));
}

}  // namespace tessera::server
