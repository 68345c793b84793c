#include "server/jobs/postgres.h"

#include <algorithm>

#include <libpq-fe.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/jobs/errors.h"
#include "server/jobs/postgres_connection.h"

namespace tessera::server {
namespace {

// Where the URL does not say otherwise. A server that is gone is noticed in time to go on
// elsewhere.
constexpr std::pair<const char*, const char*> kDefaults[] = {
    {"connect_timeout", "5"},
    {"keepalives_idle", "5"},
    {"keepalives_interval", "2"},
    {"keepalives_count", "3"},
    {"tcp_user_timeout", "10000"},
    {"application_name", "tesserad"},
    {"target_session_attrs", "read-write"}};
constexpr const char* kSecrets[] = {"password", "sslpassword"};

// Results that are awaited together; bounds what waits on both sides of the connection.
constexpr size_t kMaxPending = 512;

// Fails with division_by_zero where the epoch is over. The lock waits for a coordinator that is
// about to take over, and holds it up until the commit is done; renewals of the lease it lets pass,
// since they leave the key of the row alone.
constexpr char kFence[] =
    "SELECT 1 / count(*) FROM (SELECT 1 FROM leader WHERE epoch = ? FOR KEY SHARE) AS held";
constexpr char kDivisionByZero[] = "22012";

constexpr char kVersions[] =
    "CREATE TABLE IF NOT EXISTS schema_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL)";

class PostgresRow final : public Row {
 public:
  PostgresRow(const Result& result, int row) : result_(result), row_(row) {}
  int64_t integer(int column) const override { return decode_integer(bytes(column)); }
  double real(int column) const override { return decode_real(bytes(column)); }
  std::string_view bytes(int column) const override {
    return {PQgetvalue(result_.get(), row_, column),
            static_cast<size_t>(PQgetlength(result_.get(), row_, column))};
  }

 private:
  const Result& result_;
  const int row_;
};

class PostgresDatabase final : public Database {
 public:
  PostgresDatabase(PostgresAddress address, PostgresRole role)
      : address_(std::move(address)), role_(role) {}

  void write(const std::string& sql, Parameters parameters) override {
    guarded([&] {
      if (!std::exchange(in_transaction_, true)) connection().send("BEGIN", {});
      connection().send(sql, parameters);
      if (connection().num_pending() >= kMaxPending) connection().await();
    });
  }

  void commit() override {
    if (!in_transaction_) return;
    guarded([&] {
      if (role_.epoch) connection().send(kFence, {*role_.epoch});
      connection().send("COMMIT", {});
      connection().await();
    });
    in_transaction_ = false;
  }

  void read(const std::string& sql, Parameters parameters, Visit visit) override {
    Result result;
    const auto ask = [&] {
      connection().send(sql, parameters);
      result = connection().await();
    };
    const bool may_retry = connection_ != nullptr && !in_transaction_ && role_.is_read_only;
    try {
      guarded(ask);
    } catch (const DatabaseLost&) {
      // The connection may have been lost long ago, and nobody noticed.
      if (!may_retry) throw;
      guarded(ask);
    }
    const int num_rows = PQntuples(result.get());
    for (int i = 0; i < num_rows && visit(PostgresRow(result, i)); ++i) {
    }
  }

 private:
  // What fails leaves a connection of which little is known: the next use makes another.
  template <typename Act>
  void guarded(Act act) {
    try {
      act();
    } catch (const SqlError& failure) {
      connection_.reset();
      in_transaction_ = false;
      if (role_.epoch && failure.code() == kDivisionByZero) {
        throw DatabaseError(absl::StrCat("another coordinator leads: epoch ", *role_.epoch,
                                         " is over, and nothing of it was committed"));
      }
      throw;
    } catch (const DatabaseError&) {
      connection_.reset();
      in_transaction_ = false;
      throw;
    }
  }

  PostgresConnection& connection() {
    if (connection_ == nullptr) {
      connection_ = std::make_unique<PostgresConnection>(address_, role_.is_read_only);
    }
    return *connection_;
  }

  const PostgresAddress address_;
  const PostgresRole role_;
  std::unique_ptr<PostgresConnection> connection_;
  bool in_transaction_ = false;
};

absl::Status bad_url(const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--store ", why));
}

}  // namespace

absl::StatusOr<PostgresAddress> PostgresAddress::parse(const std::string& url,
                                                       const std::string& password) {
  if (!absl::StartsWith(url, "postgresql://") && !absl::StartsWith(url, "postgres://")) {
    return bad_url("must be postgresql://[USER@]HOST[:PORT]/DATABASE");
  }
  char* message = nullptr;
  const std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> options(
      PQconninfoParse(url.c_str(), &message), &PQconninfoFree);
  const std::unique_ptr<char, decltype(&PQfreemem)> owned(message, &PQfreemem);
  // libpq shows the part that it does not understand, which may be part of a password.
  if (options == nullptr) {
    const bool has_user = absl::StrContains(url, '@');
    return bad_url(absl::StrCat("is no URL of PostgreSQL",
                                has_user || message == nullptr ? "" : absl::StrCat(": ", message)));
  }
  PostgresAddress address;
  std::string host = "the local socket", database = "its default database";
  for (const PQconninfoOption* option = options.get(); option->keyword != nullptr; ++option) {
    if (option->val == nullptr) continue;
    const std::string keyword = option->keyword;
    if (std::find(std::begin(kSecrets), std::end(kSecrets), keyword) != std::end(kSecrets)) {
      return bad_url(absl::StrCat("holds a ", keyword,
                                  ", which every list of processes shows: put it into a file, and "
                                  "name that by --store-password-file or PGPASSFILE"));
    }
    if (keyword == "host") host = option->val;
    if (keyword == "dbname") database = option->val;
    address.parameters_.emplace_back(keyword, option->val);
  }
  for (const auto& [keyword, value] : kDefaults) {
    const auto has = [&](const auto& parameter) { return parameter.first == keyword; };
    if (std::none_of(address.parameters_.begin(), address.parameters_.end(), has)) {
      address.parameters_.emplace_back(keyword, value);
    }
  }
  address.name_ = absl::StrCat(database, " on ", host);
  if (!password.empty()) address.parameters_.emplace_back("password", password);
  return address;
}

std::unique_ptr<Database> open_postgres(const PostgresAddress& address, PostgresRole role) {
  return std::make_unique<PostgresDatabase>(address, role);
}

absl::StatusOr<std::unique_ptr<Database>> PostgresStorage::open(const Schema& schema) {
  try {
    auto database = open_postgres(address_, {.epoch = epoch_});
    database->write(kVersions, {});
    int64_t version = 0;
    database->read("SELECT version FROM schema_versions WHERE name = ?", {schema.name},
                   [&](const Row& row) {
                     version = row.integer(0);
                     return true;
                   });
    const std::string where = absl::StrCat(address_.name(), ", ", schema.name);
    if (absl::Status status = check_version(where, version, schema); !status.ok()) return status;
    for (auto step = schema.steps.begin() + version; step != schema.steps.end(); ++step) {
      for (const auto& statement : absl::StrSplit(*step, ';', absl::SkipWhitespace())) {
        database->write(std::string(statement), {});
      }
    }
    database->write(
        "INSERT INTO schema_versions (name, version) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        {schema.name, static_cast<int64_t>(schema.steps.size())});
    database->commit();
    return database;
  } catch (const SqlError& failure) {
    return to_status(failure);
  }
}

std::unique_ptr<Database> PostgresStorage::open_reader(const Schema&) {
  return open_postgres(address_, {.epoch = std::nullopt, .is_read_only = true});
}

}  // namespace tessera::server
