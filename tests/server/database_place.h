// Databases of a test's own: a directory for SQLite, or a schema of the PostgreSQL server that runs
// for the tests (tests/support/postgres.py).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/jobs/leadership.h"
#include "server/jobs/postgres.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {

class DatabasePlace {
 public:
  virtual ~DatabasePlace() = default;
  // What a coordinator that starts has; the one before may commit no more.
  virtual std::unique_ptr<Storage> storage() = 0;
  // Runs one statement, and commits.
  virtual void run(const std::string& sql) = 0;
};

class SqlitePlace final : public DatabasePlace {
 public:
  SqlitePlace();
  ~SqlitePlace() override;

  std::unique_ptr<Storage> storage() override {
    return std::make_unique<SqliteStorage>(directory_);
  }
  void run(const std::string& sql) override;

 private:
  std::filesystem::path directory_;
};

class PostgresPlace final : public DatabasePlace {
 public:
  PostgresPlace();
  ~PostgresPlace() override;

  // As the leader of a new epoch; the last one ends, whether its lease has or not.
  std::unique_ptr<Storage> storage() override;
  void run(const std::string& sql) override;

  const PostgresAddress& address() const { return address_; }
  // What the first column of the first row holds.
  int64_t number(const std::string& sql);

 private:
  const std::string schema_;
  PostgresAddress address_;
};

}  // namespace tessera::server
