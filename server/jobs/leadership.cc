#include "server/jobs/leadership.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/boot_clock.h"

namespace tessera::server {
namespace {

// The lease as this machine counts it is this much shorter: its clock may be slower than that of
// the database.
constexpr double kOwnPart = 0.9;
// Renewals in a lease, and tries where the database is away.
constexpr int kRenewals = 5;
constexpr int kTries = 20;

// Other columns than the epoch may change while commits hold its key (postgres.cc).
constexpr char kTable[] = R"sql(
CREATE TABLE IF NOT EXISTS leader (
  epoch INTEGER PRIMARY KEY,
  is_only BOOLEAN NOT NULL DEFAULT true UNIQUE CHECK (is_only),
  address TEXT NOT NULL,
  expires TIMESTAMPTZ NOT NULL,
  authority TEXT NOT NULL
))sql";
constexpr char kFirst[] =
    "INSERT INTO leader (epoch, address, expires, authority) "
    "VALUES (0, ''::bytea, to_timestamp(0), ''::bytea) ON CONFLICT (is_only) DO NOTHING";
// Two coordinators that start at once would both make the table; the number is nobody else's.
constexpr char kOneAtATime[] = "SELECT 1 FROM pg_advisory_xact_lock(7236837)";

constexpr char kLook[] =
    "SELECT epoch, address, "
    "CAST(extract(epoch FROM expires - clock_timestamp()) * 1000 AS INTEGER) FROM leader";
// Whoever writes or locks rows of our tables.
constexpr char kEndTransactions[] =
    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM pg_locks "
    "WHERE pid <> pg_backend_pid() AND mode IN ('RowShareLock', 'RowExclusiveLock') "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation IN (SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = "
    "(SELECT relnamespace FROM pg_class WHERE oid = 'leader'::regclass))) AS holders "
    "WHERE EXISTS (SELECT 1 FROM leader WHERE epoch = ? AND expires < clock_timestamp())";
constexpr char kTake[] =
    "UPDATE leader SET epoch = epoch + 1, address = ?, "
    "expires = clock_timestamp() + ? * interval '1 millisecond' "
    "WHERE epoch = ? AND expires < clock_timestamp() RETURNING epoch";
constexpr char kRenew[] =
    "UPDATE leader SET expires = clock_timestamp() + ? * interval '1 millisecond' "
    "WHERE epoch = ? RETURNING epoch";
constexpr char kRelease[] = "UPDATE leader SET expires = clock_timestamp() WHERE epoch = ?";
constexpr char kAuthority[] = "SELECT authority FROM leader";
constexpr char kHasSettings[] =
    "SELECT count(*) FROM pg_class WHERE relname = 'settings' AND relnamespace = "
    "(SELECT relnamespace FROM pg_class WHERE oid = 'leader'::regclass)";
constexpr char kSetting[] = "SELECT value FROM settings WHERE name = ?";
constexpr char kSetAuthority[] =
    "UPDATE leader SET authority = ? WHERE authority = ''::bytea RETURNING epoch";

bool ignore(const Row&) { return true; }

std::optional<int64_t> first_integer(Database& database, const char* sql,
                                     Database::Parameters parameters) {
  std::optional<int64_t> value;
  database.read(sql, parameters, [&](const Row& row) {
    value = row.integer(0);
    return true;
  });
  return value;
}

}  // namespace

absl::Duration boot_time() { return absl::FromChrono(spec::BootClock::now().time_since_epoch()); }

Election::View Election::look() {
  if (!is_there_) {
    database_->write(kOneAtATime, {});
    database_->write(kTable, {});
    database_->write(kFirst, {});
    database_->commit();
    is_there_ = true;
  }
  View view;
  database_->read(kLook, {}, [&](const Row& row) {
    view = {row.integer(0), std::string(row.bytes(1)), absl::Milliseconds(row.integer(2))};
    return true;
  });
  return view;
}

std::optional<int64_t> Election::take(const View& seen, const std::string& self) {
  if (seen.left > absl::ZeroDuration()) return std::nullopt;
  database_->read(kEndTransactions, {seen.epoch}, ignore);
  return first_integer(*database_, kTake, {self, absl::ToInt64Milliseconds(lease_), seen.epoch});
}

bool Election::renew(int64_t epoch) {
  return first_integer(*database_, kRenew, {absl::ToInt64Milliseconds(lease_), epoch}).has_value();
}

void Election::release(int64_t epoch) {
  database_->write(kRelease, {epoch});
  database_->commit();
}

std::string Election::agree_on_authority(const std::string& mine) {
  if (!mine.empty()) database_->read(kSetAuthority, {mine}, ignore);
  std::string authority;
  database_->read(kAuthority, {}, [&](const Row& row) {
    authority = row.bytes(0);
    return true;
  });
  return authority;
}

std::string Election::setting(const std::string& name) {
  std::string value;
  if (first_integer(*database_, kHasSettings, {}) == 0) return value;
  database_->read(kSetting, {name}, [&](const Row& row) {
    value = row.bytes(0);
    return true;
  });
  return value;
}

Leadership::Leadership(std::unique_ptr<Election> election, int64_t epoch, absl::Duration asked,
                       std::function<void(const std::string&)> lost)
    : election_(std::move(election)), epoch_(epoch), lost_(std::move(lost)) {
  set_end(asked);
  thread_ = std::thread([this] { keep(); });
}

Leadership::~Leadership() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Leadership::set_end(absl::Duration asked) {
  const std::lock_guard lock(mutex_);
  end_ = asked + kOwnPart * election_->lease();
}

void Leadership::check() const {
  const std::lock_guard lock(mutex_);
  if (boot_time() < end_) return;
  throw DatabaseLost(absl::StrCat("the lease of epoch ", epoch_,
                                  " has run out, and another coordinator may lead"));
}

void Leadership::keep() {
  absl::Duration pause = election_->lease() / kRenewals;
  bool is_told = false;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, absl::ToChronoNanoseconds(pause), [this] { return stopping_; });
      if (stopping_) return;
    }
    const absl::Duration asked = boot_time();
    try {
      if (!election_->renew(epoch_)) {
        return lost_(absl::StrCat("epoch ", epoch_, " is over: another coordinator leads"));
      }
      set_end(asked);
      is_told = false;
      pause = election_->lease() / kRenewals;
    } catch (const DatabaseError& failure) {
      if (!std::exchange(is_told, true)) {
        spdlog::warn("the lease was not renewed: {}; trying again while it lasts", failure.what());
      }
      pause = election_->lease() / kTries;
    }
    try {
      check();
    } catch (const DatabaseError& failure) {
      return lost_(failure.what());
    }
  }
}

void Leadership::release() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
  try {
    election_->release(epoch_);
  } catch (const DatabaseError& failure) {
    spdlog::warn("the lease was not given back, and runs out by itself: {}", failure.what());
  }
}

}  // namespace tessera::server
