#include "server/jobs/store.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "server/jobs/clock.h"
#include "server/jobs/job_table.h"
#include "tests/server/database_place.h"

namespace tessera::server {
namespace {

enum class Kind { kSqlite, kPostgres };

// The same of both kinds of database.
class StoreTest : public testing::TestWithParam<Kind> {
 protected:
  StoreTest() {
    if (GetParam() == Kind::kSqlite) {
      place_ = std::make_unique<SqlitePlace>();
    } else {
      place_ = std::make_unique<PostgresPlace>();
    }
    reopen();
  }
  ~StoreTest() override { store_.reset(); }

  // Without a commit before: what a crash would leave.
  void reopen() {
    store_.reset();
    storage_ = place_->storage();
    auto opened = Store::open(*storage_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  // Makes the tables as if they were of another version.
  void set_version(int version) {
    const std::string number = std::to_string(version);
    place_->run(GetParam() == Kind::kSqlite
                    ? "PRAGMA user_version = " + number
                    : "UPDATE schema_versions SET version = " + number + " WHERE name = 'tessera'");
  }

  int64_t insert(const std::string& id, const std::string& name, v1::Job::State state) {
    JobRecord record;
    record.mutable_job()->set_id(id);
    record.mutable_job()->mutable_spec()->set_name(name);
    record.mutable_job()->set_state(state);
    store_->insert(record, "request-" + id, record.job().spec());
    store_->update(record);
    return record.number();
  }

  v1::Cursor cursor(int rank, int64_t offset) {
    v1::Cursor cursor;
    cursor.mutable_run()->set_attempt(1);
    cursor.set_rank(rank);
    cursor.set_offset(offset);
    return cursor;
  }

  std::unique_ptr<DatabasePlace> place_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Store> store_;
};

TEST_P(StoreTest, WhatWasNotCommittedIsGone) {
  insert("a", "a", v1::Job::QUEUED);
  store_->commit();
  insert("b", "b", v1::Job::QUEUED);
  reopen();
  EXPECT_TRUE(store_->queries().find("a").ok());
  EXPECT_EQ(store_->queries().find("b").status().code(), absl::StatusCode::kNotFound);
}

TEST_P(StoreTest, ReadersSeeOnlyWhatIsCommitted) {
  Reader reader(*storage_);
  const auto found = [&] { return reader([](Queries& q) { return q.find("a"); }).ok(); };
  insert("a", "a", v1::Job::QUEUED);
  EXPECT_FALSE(found());
  store_->commit();
  EXPECT_TRUE(found());
}

TEST_P(StoreTest, EventsAndTheirCursorAreOneTransaction) {
  const int64_t job = insert("a", "a", v1::Job::RUNNING);
  store_->commit();
  v1::Event event;
  event.mutable_step()->set_step(1);
  store_->append(job, event);
  store_->set_cursor(job, cursor(0, 100));
  reopen();
  EXPECT_EQ(store_->cursor(job, cursor(0, 0)), 0);
  EXPECT_TRUE(store_->queries().events(job, 0).empty());
  store_->append(job, event);
  store_->set_cursor(job, cursor(0, 100));
  store_->commit();
  reopen();
  EXPECT_EQ(store_->cursor(job, cursor(0, 0)), 100);
  EXPECT_EQ(store_->cursor(job, cursor(1, 0)), 0);
  EXPECT_EQ(store_->queries().events(job, 0).size(), 1u);
}

TEST_P(StoreTest, RevisionsGrowOverJobsAndRestarts) {
  const int64_t a = insert("a", "a", v1::Job::RUNNING);
  const int64_t b = insert("b", "b", v1::Job::RUNNING);
  int64_t last = 0;
  for (int i = 0; i < 6; ++i) {
    v1::Event event;
    store_->append(i % 2 == 0 ? a : b, event);
    EXPECT_GT(event.revision(), last);
    last = event.revision();
    store_->commit();
    if (i == 2) reopen();
  }
  EXPECT_EQ(store_->queries().events(a, 0).size(), 3u);
  EXPECT_EQ(store_->queries().events(b, last).size(), 1u);
}

TEST_P(StoreTest, EpochsGrowOverRestarts) {
  EXPECT_EQ(store_->next_epoch("n"), 1);
  EXPECT_EQ(store_->next_epoch("n"), 2);
  store_->commit();
  reopen();
  EXPECT_EQ(store_->next_epoch("n"), 3);
  EXPECT_EQ(store_->next_epoch("m"), 1);
}

TEST_P(StoreTest, AnotherSchemaVersionIsRefused) {
  store_.reset();
  set_version(99);
  const auto opened = Store::open(*storage_);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(opened.status().message().find("99"), absl::string_view::npos);
}

TEST_P(StoreTest, AnOlderSchemaIsBroughtUpToDate) {
  insert("x-1", "x", v1::Job::QUEUED);
  store_->commit();
  store_.reset();
  place_->run("DROP TABLE peak_ratios");
  place_->run("DROP TABLE projects");
  place_->run("DROP TABLE settings");
  place_->run("DROP INDEX unfinished_jobs_by_name");
  set_version(1);
  reopen();
  EXPECT_EQ(store_->unfinished().size(), 1U);
  store_->add_peak_ratio("cpu", 2);
  store_->commit();
  const double known = store_->peak_ratio("cpu");
  EXPECT_GT(known, 1);
  store_.reset();
  place_->run("DROP TABLE projects");
  place_->run("DROP TABLE settings");
  place_->run("DROP INDEX unfinished_jobs_by_name");
  set_version(2);
  reopen();
  EXPECT_EQ(store_->peak_ratio("cpu"), known);
  EXPECT_TRUE(store_->projects().empty());
}

TEST_P(StoreTest, KeepsAMeanOfPeaksOverPredictions) {
  EXPECT_EQ(store_->peak_ratio("cpu"), 1);
  EXPECT_DOUBLE_EQ(store_->add_peak_ratio("cpu", 1.4), 1.1);
  EXPECT_DOUBLE_EQ(store_->add_peak_ratio("cpu", 1.1), 1.1);
  store_->commit();
  reopen();
  EXPECT_DOUBLE_EQ(store_->peak_ratio("cpu"), 1.1);
  EXPECT_EQ(store_->peak_ratio("NVIDIA H100"), 1);
}

TEST_P(StoreTest, SettingsStay) {
  EXPECT_EQ(store_->setting("owner"), "");
  store_->set_setting("owner", "a");
  store_->set_setting("other", "b");
  store_->commit();
  reopen();
  EXPECT_EQ(store_->setting("owner"), "a");
  store_->set_setting("owner", "c");
  EXPECT_EQ(store_->setting("owner"), "c");
  EXPECT_EQ(store_->setting("other"), "b");
}

TEST_P(StoreTest, ANameIsEnoughForOneUnfinishedJob) {
  insert("x-1", "x", v1::Job::SUCCEEDED);
  EXPECT_EQ(store_->queries().find("x").status().code(), absl::StatusCode::kNotFound);
  insert("x-2", "x", v1::Job::QUEUED);
  EXPECT_EQ(store_->queries().find("x")->job().id(), "x-2");
  insert("x-3", "x", v1::Job::RUNNING);
  EXPECT_EQ(store_->queries().find("x").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->queries().find("x-1")->job().id(), "x-1");
}

TEST_P(StoreTest, ListsNewestFirstByState) {
  for (int i = 0; i < 5; ++i) {
    insert("j" + std::to_string(i), "j", i % 2 == 0 ? v1::Job::QUEUED : v1::Job::FAILED);
  }
  const JobPage page = store_->queries().list(100, {v1::Job::QUEUED}, 2);
  ASSERT_EQ(page.records.size(), 2u);
  EXPECT_TRUE(page.more);
  EXPECT_EQ(page.records[0].job().id(), "j4");
  EXPECT_EQ(page.records[1].job().id(), "j2");
  EXPECT_FALSE(store_->queries().list(page.records[1].number(), {v1::Job::QUEUED}, 2).more);
}

TEST_P(StoreTest, KeepsProjects) {
  StoredProject stored;
  stored.project.set_name("a");
  stored.project.set_max_devices(3);
  stored.mean = 1.5;
  stored.mean_time = absl::FromUnixMillis(1234);
  store_->put_project(stored);
  stored.project.set_max_devices(4);
  store_->put_project(stored);
  store_->commit();
  reopen();
  const std::vector<StoredProject> projects = store_->projects();
  ASSERT_EQ(projects.size(), 1u);
  EXPECT_EQ(projects[0].project.max_devices(), 4);
  EXPECT_EQ(projects[0].mean, 1.5);
  EXPECT_EQ(projects[0].mean_time, absl::FromUnixMillis(1234));
}

TEST_P(StoreTest, NamesMayHoldAnyByte) {
  const std::string name("a\0b\xff'\"?$1", 9);
  JobRecord record;
  record.mutable_job()->set_id("a");
  store_->insert(record, name, record.job().spec());
  EXPECT_EQ(store_->next_epoch(name), 1);
  store_->commit();
  reopen();
  ASSERT_TRUE(store_->submission(name).has_value());
  EXPECT_EQ(store_->submission(name)->job_id, "a");
  EXPECT_FALSE(store_->submission(name.substr(0, 1)).has_value());
  EXPECT_EQ(store_->next_epoch(name), 2);
  EXPECT_FALSE(store_->queries().find(name).ok());
}

TEST_P(StoreTest, ATransactionMayBeLong) {
  const int64_t job = insert("a", "a", v1::Job::RUNNING);
  constexpr int kMany = 3000;
  for (int i = 0; i < kMany; ++i) {
    v1::Event event;
    event.mutable_log()->set_text(std::string(200, 'x'));
    store_->append(job, event);
    store_->set_cursor(job, cursor(0, i));
  }
  EXPECT_EQ(store_->queries().last_events(job, 1)[0].revision(), kMany);
  store_->commit();
  reopen();
  EXPECT_EQ(store_->cursor(job, cursor(0, 0)), kMany - 1);
  EXPECT_EQ(store_->queries().events(job, 0, 10'000).size(), size_t{kMany});
}

TEST_P(StoreTest, ReadsManyUnfinishedJobsInOrder) {
  constexpr int kMany = 2500;
  for (int i = 0; i < kMany; ++i) {
    insert(std::to_string(i), "n", i % 5 == 0 ? v1::Job::FAILED : v1::Job::QUEUED);
  }
  store_->commit();
  const std::vector<JobRecord> records = store_->unfinished();
  ASSERT_EQ(records.size(), size_t{kMany / 5 * 4});
  for (size_t i = 1; i < records.size(); ++i) {
    ASSERT_LT(records[i - 1].number(), records[i].number());
  }
}

TEST_P(StoreTest, AnIllegalTransitionStopsTheProcess) {
  const SystemClock clock;
  JobTable jobs(*store_, clock, [] { return 7u; });
  v1::JobSpec spec;
  spec.set_name("a");
  JobRecord& record = jobs.create(spec, spec, "r");
  EXPECT_DEATH(jobs.transition(record, v1::Job::SUCCEEDED, ""), "QUEUED to SUCCEEDED");
}

INSTANTIATE_TEST_SUITE_P(Databases, StoreTest, testing::Values(Kind::kSqlite, Kind::kPostgres),
                         [](const auto& info) {
                           return info.param == Kind::kSqlite ? "Sqlite" : "Postgres";
                         });

}  // namespace
}  // namespace tessera::server
