// Where a coordinator keeps its state: connections to SQLite on its own disk, or to PostgreSQL,
// which several coordinators share and one of them leads (leadership.h).
//
// Statements are written once, in the SQL that both understand: ? is a parameter, and columns are
// of the types INTEGER, REAL, TEXT and BLOB, as SQLite names them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tessera::server {

// The database failed, or cannot be reached; whatever was not committed is gone.
class DatabaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// It cannot be reached or used now: what is asked of it later may succeed.
class DatabaseLost : public DatabaseError {
 public:
  using DatabaseError::DatabaseError;
};

// Its disk fails: errors of input and output, a file system that became read-only, a lock that
// somebody else keeps.
class DiskFailed : public DatabaseLost {
 public:
  using DatabaseLost::DatabaseLost;
};

// Its disk has no room.
class DiskFull : public DatabaseLost {
 public:
  using DatabaseLost::DatabaseLost;
};

// For who asked: RESOURCE_EXHAUSTED (DISK_FULL), UNAVAILABLE (DISK_FAILED, or STORE of one that was
// lost), else INTERNAL (STORE).
absl::Status to_status(const DatabaseError& failure);

// Bytes that are no text.
struct Blob {
  std::string_view bytes;
};

// Views need to live as long as the call.
using Parameter = std::variant<int64_t, double, std::string_view, Blob>;

class Row {
 public:
  virtual ~Row() = default;
  virtual int64_t integer(int column) const = 0;
  virtual double real(int column) const = 0;
  // Text or a blob, until the next row.
  virtual std::string_view bytes(int column) const = 0;
};

// The message that a column holds. Throws DatabaseError: it holds none.
template <typename Message>
Message parse(const Row& row, int column) {
  Message message;
  const std::string_view bytes = row.bytes(column);
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw DatabaseError("a row of the database does not parse");
  }
  return message;
}

// One connection. Not thread safe. Every method throws DatabaseError.
class Database {
 public:
  using Parameters = std::initializer_list<Parameter>;
  // Gets one row after the other; false: it wants no more.
  using Visit = absl::FunctionRef<bool(const Row&)>;

  virtual ~Database() = default;

  // Writes join one transaction, begun by the first of them, until commit() has it on disk.
  virtual void write(const std::string& sql, Parameters parameters) = 0;
  virtual void commit() = 0;

  // Sees what is committed, and what this connection wrote since.
  virtual void read(const std::string& sql, Parameters parameters, Visit visit) = 0;
};

// Tables that belong together. Version n of them is what the first n of `steps` make.
struct Schema {
  // Of the file that they are in, or of their version where all are in one database.
  std::string name;
  std::vector<std::string> steps;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // A connection that writes, its tables made or brought up to date. FAILED_PRECONDITION: they were
  // written by another version. INTERNAL: the database failed. Throws DatabaseLost.
  virtual absl::StatusOr<std::unique_ptr<Database>> open(const Schema& schema) = 0;
  // One that only reads, of tables that are there. Throws DatabaseError.
  virtual std::unique_ptr<Database> open_reader(const Schema& schema) = 0;
};

// For both kinds of storage: whether tables of this version can be used.
absl::Status check_version(const std::string& where, int64_t version, const Schema& schema);

}  // namespace tessera::server
