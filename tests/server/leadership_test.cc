// Who leads, on a real server: epochs, leases, and what a coordinator that was deposed can still
// do.
#include "server/jobs/leadership.h"

#include <condition_variable>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/jobs/store.h"
#include "tests/server/database_place.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kLong = absl::Hours(1);
constexpr absl::Duration kShort = absl::Milliseconds(300);

class LeadershipTest : public testing::Test {
 protected:
  Election election(absl::Duration lease = kLong) { return {place_.address(), lease}; }

  // Tries until the lease of the leader has run out.
  int64_t await_epoch(Election& election, const std::string& self) {
    while (true) {
      if (const auto epoch = election.take(election.look(), self)) return *epoch;
    }
  }

  void insert(Store& store, const std::string& id) {
    JobRecord record;
    record.mutable_job()->set_id(id);
    store.insert(record, "request-" + id, record.job().spec());
  }

  int64_t num_jobs() { return place_.number("SELECT count(*) FROM jobs"); }

  PostgresPlace place_;
};

TEST_F(LeadershipTest, OneLeadsUntilItsLeaseEnds) {
  Election a = election(kShort), b = election();
  EXPECT_EQ(a.look().leader, "");
  EXPECT_EQ(a.take(a.look(), "a"), 1);
  EXPECT_EQ(b.look().leader, "a");
  EXPECT_EQ(b.take(b.look(), "b"), std::nullopt);
  EXPECT_TRUE(a.renew(1));
  EXPECT_EQ(await_epoch(b, "b"), 2);
  EXPECT_EQ(a.look().leader, "b");
  EXPECT_GT(a.look().left, absl::Minutes(59));
  EXPECT_FALSE(a.renew(1));
  a.release(1);
  EXPECT_EQ(a.take(a.look(), "a"), std::nullopt) << "it gave back what was not its own any more";
  b.release(2);
  EXPECT_EQ(a.take(a.look(), "a"), 3);
}

TEST_F(LeadershipTest, OfSeveralThatSeeTheLeaseEndOneTakesIt) {
  Election a = election(), b = election();
  const Election::View seen = a.look();
  ASSERT_LT(seen.left, absl::ZeroDuration());
  EXPECT_TRUE(a.take(seen, "a").has_value());
  EXPECT_FALSE(b.take(seen, "b").has_value());
}

TEST_F(LeadershipTest, WhoWasDeposedCommitsNothing) {
  Election a = election(kShort), b = election();
  ASSERT_EQ(a.take(a.look(), "a"), 1);
  PostgresStorage storage(place_.address(), 1);
  auto store = Store::open(storage);
  ASSERT_TRUE(store.ok()) << store.status();
  insert(**store, "before");
  (*store)->commit();
  ASSERT_EQ(await_epoch(b, "b"), 2);
  insert(**store, "after");
  try {
    (*store)->commit();
    FAIL() << "the commit of an epoch that is over was taken";
  } catch (const DatabaseError& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("epoch 1 is over"));
  }
  EXPECT_EQ(num_jobs(), 1);
  // Nor does it the second time, on another connection, or by making tables.
  insert(**store, "after");
  EXPECT_THROW((*store)->commit(), DatabaseError);
  EXPECT_THROW(Store::open(storage).IgnoreError(), DatabaseError);
  EXPECT_EQ(num_jobs(), 1);
}

TEST_F(LeadershipTest, ATransactionLeftOpenDoesNotHoldUpTheNext) {
  Election a = election(kShort), b = election();
  ASSERT_EQ(a.take(a.look(), "a"), 1);
  PostgresStorage storage(place_.address(), 1);
  auto stopped = Store::open(storage);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  insert(**stopped, "x");
  // Has it at the server, where it holds the row until somebody ends it.
  ASSERT_TRUE((*stopped)->queries().find("x").ok());
  PostgresStorage next(place_.address(), await_epoch(b, "b"));
  auto store = Store::open(next);
  ASSERT_TRUE(store.ok()) << store.status();
  insert(**store, "x");
  (*store)->commit();
  EXPECT_THROW((*stopped)->commit(), DatabaseError);
  EXPECT_EQ(num_jobs(), 1);
}

TEST_F(LeadershipTest, ATakeoverWaitsForTheCommitUnderWay) {
  Election a = election(kShort);
  ASSERT_EQ(a.take(a.look(), "a"), 1);
  // What a commit holds between its fence and its end. Renewals go on meanwhile.
  const auto commit = open_postgres(place_.address(), {});
  commit->write("SELECT 1 FROM leader WHERE epoch = 1 FOR KEY SHARE", {});
  commit->read("SELECT 1", {}, [](const Row&) { return true; });
  EXPECT_TRUE(a.renew(1));
  const auto taker = open_postgres(place_.address(), {});
  taker->write("SET LOCAL lock_timeout = '100ms'", {});
  taker->write("UPDATE leader SET epoch = epoch + 1", {});
  EXPECT_THAT([&] { taker->commit(); },
              testing::ThrowsMessage<DatabaseError>(HasSubstr("lock timeout")));
  commit->commit();
  EXPECT_TRUE(a.renew(1));
}

TEST_F(LeadershipTest, KeepsItsLeaseUntilAnotherLeads) {
  std::mutex mutex;
  std::condition_variable changed;
  std::string why;
  auto kept = std::make_unique<Election>(place_.address(), kShort);
  const absl::Duration asked = boot_time();
  ASSERT_EQ(kept->take(kept->look(), "a"), 1);
  Leadership leadership(std::move(kept), 1, asked, [&](const std::string& reason) {
    const std::lock_guard lock(mutex);
    why = reason;
    changed.notify_one();
  });
  const int64_t first = place_.number(
      "SELECT CAST(extract(epoch FROM expires) * 1000 AS BIGINT) "
      "FROM leader");
  while (place_.number("SELECT CAST(extract(epoch FROM expires) * 1000 AS BIGINT) FROM leader") <
         first + 2 * absl::ToInt64Milliseconds(kShort)) {
  }
  leadership.check();
  place_.run("UPDATE leader SET epoch = 7");
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return !why.empty(); });
  EXPECT_THAT(why, HasSubstr("epoch 1 is over"));
}

TEST_F(LeadershipTest, ALeaseThatCannotBeRenewedIsLost) {
  std::mutex mutex;
  std::condition_variable changed;
  std::string why;
  auto kept = std::make_unique<Election>(place_.address(), kShort);
  const absl::Duration asked = boot_time();
  ASSERT_EQ(kept->take(kept->look(), "a"), 1);
  place_.run("ALTER TABLE leader RENAME TO hidden");
  Leadership leadership(std::move(kept), 1, asked, [&](const std::string& reason) {
    const std::lock_guard lock(mutex);
    why = reason;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return !why.empty(); });
  EXPECT_THAT(why, HasSubstr("the lease of epoch 1 has run out"));
  EXPECT_THROW(leadership.check(), DatabaseLost);
}

TEST_F(LeadershipTest, AllAgreeOnOneAuthority) {
  Election a = election(), b = election();
  a.look();
  EXPECT_EQ(a.agree_on_authority(""), "");
  EXPECT_EQ(a.agree_on_authority("first"), "first");
  EXPECT_EQ(b.agree_on_authority("second"), "first");
  EXPECT_EQ(b.agree_on_authority(""), "first");
}

TEST_F(LeadershipTest, AReaderFindsTheServerAgain) {
  const auto storage = place_.storage();
  auto store = Store::open(*storage);
  ASSERT_TRUE(store.ok()) << store.status();
  Reader reader(*storage);
  const auto count = [&] {
    return reader([](Queries& queries) { return queries.count_by_state(); }).size();
  };
  EXPECT_EQ(count(), 0u);
  place_.run(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
      "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' "
      "AND query LIKE '%GROUP BY state%'");
  EXPECT_EQ(count(), 0u);
}

TEST(PostgresAddress, RefusesSecretsAndWhatIsNoUrl) {
  const auto refusal = [](const std::string& url) {
    return std::string(PostgresAddress::parse(url, "").status().message());
  };
  EXPECT_THAT(refusal("mysql://h/d"), HasSubstr("must be postgresql://"));
  EXPECT_THAT(refusal("postgresql://u:hunter2@h/d"), HasSubstr("holds a password"));
  EXPECT_THAT(refusal("postgresql://h/d?sslpassword=hunter2"), HasSubstr("holds a sslpassword"));
  EXPECT_THAT(refusal("postgresql://h/d?colour=red"), HasSubstr("colour"));
  for (const char* url : {"postgresql://u:hunter2@h/d", "postgresql://u:hunter%2@h/d"}) {
    EXPECT_THAT(refusal(url), Not(HasSubstr("hunter"))) << url;
  }
  const auto address = PostgresAddress::parse("postgresql://u@db.internal/jobs", "hunter2");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->name(), "jobs on db.internal");
}

}  // namespace
}  // namespace tessera::server
