// A connection to PostgreSQL in libpq's pipeline mode: statements go out without waiting for the
// results of those before, in the binary format. Every wait has a deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <libpq-fe.h>

#include "server/jobs/database.h"
#include "server/jobs/postgres.h"

namespace tessera::server {

// The server refused a statement.
class SqlError final : public DatabaseError {
 public:
  SqlError(const std::string& message, std::string code)
      : DatabaseError(message), code_(std::move(code)) {}
  // SQLSTATE.
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

struct PostgresDeleter {
  void operator()(PGresult* result) const { PQclear(result); }
  void operator()(PGconn* connection) const { PQfinish(connection); }
};
using Result = std::unique_ptr<PGresult, PostgresDeleter>;

// Not thread safe. Throws DatabaseLost where the connection fails.
class PostgresConnection {
 public:
  PostgresConnection(const PostgresAddress& address, bool is_read_only);

  // Sends a statement in the SQL of database.h.
  void send(const std::string& sql, Database::Parameters parameters);
  // Awaits the results of all that was sent; gives the last one. Throws SqlError: one was refused,
  // and of those after it none was done.
  Result await();
  size_t num_pending() const { return num_pending_; }

 private:
  void prepare_session(bool is_read_only);
  // The name that the statement was prepared by.
  const std::string& prepared(const std::string& sql, Database::Parameters parameters);
  // The next one of libpq's; nullptr between those of two statements.
  Result next_result();
  [[noreturn]] void lost() const;

  const std::string where_;
  std::unique_ptr<PGconn, PostgresDeleter> connection_;
  std::unordered_map<std::string, std::string> statements_;  // names by SQL
  size_t num_pending_ = 0;
};

// Values of columns, as they come.
int64_t decode_integer(std::string_view bytes);
double decode_real(std::string_view bytes);

}  // namespace tessera::server
