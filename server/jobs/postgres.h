// State in PostgreSQL, shared by the coordinators of a cluster.
//
// Names come from clients and may hold any byte, so text is kept as BYTEA:
// SELECT convert_from(name, 'UTF8') FROM jobs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/jobs/database.h"

namespace tessera::server {

// Where a database is, and how to get in: libpq's connection parameters.
class PostgresAddress {
 public:
  // `url` is as libpq has it, postgresql://[USER@]HOST[:PORT]/DATABASE[?PARAMETER=VALUE&...].
  // Without a `password` libpq looks into the file that PGPASSFILE or the parameter passfile names.
  // INVALID_ARGUMENT: it is no such URL, or holds a secret.
  static absl::StatusOr<PostgresAddress> parse(const std::string& url, const std::string& password);

  // Without secrets, as in "tessera on db.internal".
  const std::string& name() const { return name_; }
  const std::vector<std::pair<std::string, std::string>>& parameters() const { return parameters_; }

 private:
  std::vector<std::pair<std::string, std::string>> parameters_;
  std::string name_;
};

// What a connection may do.
struct PostgresRole {
  // Commits only while this epoch of the leadership lasts (leadership.h); nullopt: it is not asked.
  std::optional<int64_t> epoch;
  bool is_read_only = false;
};

// Connects when it is first used, and again after it lost the connection, which ends the
// transaction. Writes are sent together, and their results awaited with the next read or the
// commit.
std::unique_ptr<Database> open_postgres(const PostgresAddress& address, PostgresRole role);

// Of the leader of an epoch.
class PostgresStorage final : public Storage {
 public:
  PostgresStorage(PostgresAddress address, int64_t epoch)
      : address_(std::move(address)), epoch_(epoch) {}

  absl::StatusOr<std::unique_ptr<Database>> open(const Schema& schema) override;
  std::unique_ptr<Database> open_reader(const Schema& schema) override;

 private:
  const PostgresAddress address_;
  const int64_t epoch_;
};

}  // namespace tessera::server
