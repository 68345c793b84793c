#include "tests/server/database_place.h"

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

#include <SQLiteCpp/SQLiteCpp.h>

namespace tessera::server {
namespace {

std::string server_url() {
  std::string url;
  if (!(std::ifstream(POSTGRES_FILE) >> url)) {
    throw std::runtime_error(
        "no PostgreSQL server runs for the tests: run this by ctest, or first "
        "tests/support/postgres.py start " POSTGRES_FILE);
  }
  return url;
}

PostgresAddress parsed(const std::string& url) {
  auto address = PostgresAddress::parse(url, "");
  if (!address.ok()) throw std::runtime_error(std::string(address.status().message()));
  return *std::move(address);
}

void run_on(const PostgresAddress& address, const std::string& sql) {
  const auto database = open_postgres(address, {});
  database->write(sql, {});
  database->commit();
}

}  // namespace

SqlitePlace::SqlitePlace() {
  char pattern[] = "/tmp/tessera-store-XXXXXX";
  directory_ = mkdtemp(pattern);
}

SqlitePlace::~SqlitePlace() { std::filesystem::remove_all(directory_); }

void SqlitePlace::run(const std::string& sql) {
  SQLite::Database((directory_ / "tessera.db").string(), SQLite::OPEN_READWRITE).exec(sql);
}

PostgresPlace::PostgresPlace()
    : schema_("test_" + std::to_string(::getpid())),
      address_(parsed(server_url() + "&options=-csearch_path%3D" + schema_)) {
  run_on(parsed(server_url()), "CREATE SCHEMA " + schema_);
}

PostgresPlace::~PostgresPlace() {
  run_on(parsed(server_url()), "DROP SCHEMA " + schema_ + " CASCADE");
}

std::unique_ptr<Storage> PostgresPlace::storage() {
  Election election(address_, absl::Hours(1));
  Election::View seen = election.look();
  election.release(seen.epoch);
  seen.left = absl::ZeroDuration();
  const auto epoch = election.take(seen, "here");
  if (!epoch) throw std::runtime_error("somebody else leads");
  return std::make_unique<PostgresStorage>(address_, *epoch);
}

void PostgresPlace::run(const std::string& sql) { run_on(address_, sql); }

int64_t PostgresPlace::number(const std::string& sql) {
  int64_t number = -1;
  open_postgres(address_, {})->read(sql, {}, [&](const Row& row) {
    number = row.integer(0);
    return false;
  });
  return number;
}

}  // namespace tessera::server
