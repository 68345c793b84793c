#include "server/jobs/postgres_connection.h"

#include <endian.h>
#include <poll.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tessera::server {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAnswerTimeout{30};
constexpr size_t kMaxStatements = 64;

// Types of parameters, from PostgreSQL's pg_type.
constexpr Oid kInt8 = 20;
constexpr Oid kFloat8 = 701;
constexpr Oid kBytea = 17;

// What database.h has in SQLite's words. Ours hold neither words nor marks in quotes.
std::string to_postgres(const std::string& sql) {
  const std::string translated = absl::StrReplaceAll(sql, {{"INTEGER", "BIGINT"},
                                                           {"REAL", "DOUBLE PRECISION"},
                                                           {"TEXT", "BYTEA"},
                                                           {"BLOB", "BYTEA"},
                                                           {"WITHOUT ROWID", ""}});
  std::string numbered;
  int number = 0;
  for (const char c : translated) {
    if (c == '?') {
      absl::StrAppend(&numbered, "$", ++number);
    } else {
      numbered += c;
    }
  }
  return numbered;
}

// Parameters as libpq takes them. Numbers are kept here, bytes where they are.
struct Arguments {
  explicit Arguments(Database::Parameters parameters) : numbers(parameters.size()) {
    for (const Parameter& parameter : parameters) std::visit(*this, parameter);
  }
  int count() const { return static_cast<int>(values.size()); }

  void operator()(int64_t value) { number(kInt8, static_cast<uint64_t>(value)); }
  void operator()(double value) { number(kFloat8, std::bit_cast<uint64_t>(value)); }
  void operator()(std::string_view text) { add(kBytea, text.data(), text.size()); }
  void operator()(Blob blob) { add(kBytea, blob.bytes.data(), blob.bytes.size()); }

  void number(Oid type, uint64_t bits) {
    char* place = numbers[values.size()].data();
    const uint64_t big_endian = htobe64(bits);
    std::memcpy(place, &big_endian, sizeof(big_endian));
    add(type, place, sizeof(big_endian));
  }

  void add(Oid type, const char* bytes, size_t size) {
    types.push_back(type);
    // Without an address it would be NULL.
    values.push_back(bytes == nullptr ? "" : bytes);
    lengths.push_back(static_cast<int>(size));
    formats.push_back(1);
  }

  std::vector<std::array<char, sizeof(uint64_t)>> numbers;
  std::vector<Oid> types;
  std::vector<const char*> values;
  std::vector<int> lengths;
  std::vector<int> formats;
};

std::string first_line(const char* message) {
  const std::string text(absl::StripAsciiWhitespace(message == nullptr ? "" : message));
  return text.substr(0, text.find('\n'));
}

uint64_t eight_bytes(std::string_view bytes) {
  if (bytes.size() != sizeof(uint64_t)) throw DatabaseError("a column is of another type");
  uint64_t big_endian = 0;
  std::memcpy(&big_endian, bytes.data(), sizeof(big_endian));
  return be64toh(big_endian);
}

}  // namespace

int64_t decode_integer(std::string_view bytes) { return static_cast<int64_t>(eight_bytes(bytes)); }
double decode_real(std::string_view bytes) { return std::bit_cast<double>(eight_bytes(bytes)); }

PostgresConnection::PostgresConnection(const PostgresAddress& address, bool is_read_only)
    : where_(address.name()) {
  std::vector<const char*> keywords, values;
  for (const auto& [keyword, value] : address.parameters()) {
    keywords.push_back(keyword.c_str());
    values.push_back(value.c_str());
  }
  keywords.push_back(nullptr);
  values.push_back(nullptr);
  connection_.reset(PQconnectdbParams(keywords.data(), values.data(), 0));
  if (PQstatus(connection_.get()) != CONNECTION_OK) lost();
  if (PQsetnonblocking(connection_.get(), 1) != 0 || PQenterPipelineMode(connection_.get()) != 1) {
    lost();
  }
  prepare_session(is_read_only);
}

void PostgresConnection::prepare_session(bool is_read_only) {
  // What is acknowledged is on disk, whatever the server's default is; more than that may be asked.
  send(
      "SELECT set_config('synchronous_commit', 'on', false) "
      "WHERE current_setting('synchronous_commit') = 'off'",
      {});
  send("SELECT set_config('client_min_messages', 'error', false)", {});
  // A row that changed while its lock was waited for is to be looked at again, not to be an error.
  send("SET default_transaction_isolation = 'read committed'", {});
  if (is_read_only) send("SET default_transaction_read_only = on", {});
  await();
}

void PostgresConnection::lost() const {
  throw DatabaseLost(
      absl::StrCat("the database (", where_, "): ", first_line(PQerrorMessage(connection_.get()))));
}

const std::string& PostgresConnection::prepared(const std::string& sql,
                                                Database::Parameters parameters) {
  auto found = statements_.find(sql);
  if (found != statements_.end()) return found->second;
  if (statements_.size() >= kMaxStatements) {
    statements_.clear();
    if (PQsendQueryParams(connection_.get(), "DEALLOCATE ALL", 0, nullptr, nullptr, nullptr,
                          nullptr, 1) != 1) {
      lost();
    }
    ++num_pending_;
  }
  found = statements_.emplace(sql, absl::StrCat("s", statements_.size())).first;
  const Arguments arguments(parameters);
  if (PQsendPrepare(connection_.get(), found->second.c_str(), to_postgres(sql).c_str(),
                    arguments.count(), arguments.types.data()) != 1) {
    lost();
  }
  ++num_pending_;
  return found->second;
}

void PostgresConnection::send(const std::string& sql, Database::Parameters parameters) {
  const std::string& name = prepared(sql, parameters);
  const Arguments arguments(parameters);
  if (PQsendQueryPrepared(connection_.get(), name.c_str(), arguments.count(),
                          arguments.values.data(), arguments.lengths.data(),
                          arguments.formats.data(), 1) != 1) {
    lost();
  }
  ++num_pending_;
}

Result PostgresConnection::await() {
  if (PQpipelineSync(connection_.get()) != 1) lost();
  Result last;
  std::string message, code;
  while (true) {
    Result result = next_result();
    if (result == nullptr) {
      if (PQstatus(connection_.get()) != CONNECTION_OK) lost();
      continue;
    }
    const ExecStatusType status = PQresultStatus(result.get());
    if (status == PGRES_PIPELINE_SYNC) break;
    if (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK) {
      last = std::move(result);
    } else if (status != PGRES_PIPELINE_ABORTED && message.empty()) {
      message = first_line(PQresultErrorMessage(result.get()));
      const char* sqlstate = PQresultErrorField(result.get(), PG_DIAG_SQLSTATE);
      code = sqlstate == nullptr ? "" : sqlstate;
      if (PQstatus(connection_.get()) != CONNECTION_OK) lost();
    }
  }
  num_pending_ = 0;
  if (message.empty()) return last;
  message = absl::StrCat("the database (", where_, "): ", message);
  // Class 57: an operator ended the session, or the server stops or starts.
  if (code.starts_with("57P")) throw DatabaseLost(message);
  throw SqlError(message, code);
}

Result PostgresConnection::next_result() {
  const auto give_up = SteadyClock::now() + kAnswerTimeout;
  while (true) {
    const int unsent = PQflush(connection_.get());
    if (unsent < 0) lost();
    if (unsent == 0 && PQisBusy(connection_.get()) == 0)
      return Result(PQgetResult(connection_.get()));
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(give_up - SteadyClock::now());
    pollfd socket{PQsocket(connection_.get()), POLLIN, 0};
    if (unsent > 0) socket.events |= POLLOUT;
    const int ready = left.count() > 0 ? ::poll(&socket, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno != EINTR) lost();
    if (ready == 0) {
      throw DatabaseLost(absl::StrCat("the database (", where_, ") has not answered for ",
                                      kAnswerTimeout.count(), " s"));
    }
    if (PQconsumeInput(connection_.get()) != 1) lost();
  }
}

}  // namespace tessera::server
