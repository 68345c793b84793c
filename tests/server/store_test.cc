#include "server/jobs/store.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "server/jobs/clock.h"
#include "server/jobs/job_table.h"

namespace tessera::server {
namespace {

class StoreTest : public testing::Test {
 protected:
  StoreTest() {
    char pattern[] = "/tmp/tessera-store-XXXXXX";
    directory_ = mkdtemp(pattern);
    reopen();
  }
  ~StoreTest() override {
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Without a commit before: what a crash would leave.
  void reopen() {
    store_.reset();
    auto opened = Store::open(path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }

  std::filesystem::path path() const { return directory_ / "tessera.db"; }

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

  std::filesystem::path directory_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, WhatWasNotCommittedIsGone) {
  insert("a", "a", v1::Job::QUEUED);
  store_->commit();
  insert("b", "b", v1::Job::QUEUED);
  reopen();
  EXPECT_TRUE(store_->queries().find("a").ok());
  EXPECT_EQ(store_->queries().find("b").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, ReadersSeeOnlyWhatIsCommitted) {
  Reader reader(path());
  const auto found = [&] { return reader([](Queries& q) { return q.find("a"); }).ok(); };
  insert("a", "a", v1::Job::QUEUED);
  EXPECT_FALSE(found());
  store_->commit();
  EXPECT_TRUE(found());
}

TEST_F(StoreTest, EventsAndTheirCursorAreOneTransaction) {
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

TEST_F(StoreTest, RevisionsGrowOverJobsAndRestarts) {
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

TEST_F(StoreTest, EpochsGrowOverRestarts) {
  EXPECT_EQ(store_->next_epoch("n"), 1);
  EXPECT_EQ(store_->next_epoch("n"), 2);
  store_->commit();
  reopen();
  EXPECT_EQ(store_->next_epoch("n"), 3);
  EXPECT_EQ(store_->next_epoch("m"), 1);
}

TEST_F(StoreTest, AnotherSchemaVersionIsRefused) {
  store_.reset();
  SQLite::Database(path().string(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 99");
  const auto opened = Store::open(path());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(opened.status().message().find("99"), absl::string_view::npos);
}

TEST_F(StoreTest, AnOlderSchemaIsBroughtUpToDate) {
  insert("x-1", "x", v1::Job::QUEUED);
  store_->commit();
  store_.reset();
  SQLite::Database(path().string(), SQLite::OPEN_READWRITE)
      .exec("DROP TABLE peak_ratios; DROP TABLE projects; PRAGMA user_version = 1");
  reopen();
  EXPECT_EQ(store_->unfinished().size(), 1U);
  store_->add_peak_ratio("cpu", 2);
  store_->commit();
  const double known = store_->peak_ratio("cpu");
  EXPECT_GT(known, 1);
  store_.reset();
  SQLite::Database(path().string(), SQLite::OPEN_READWRITE)
      .exec("DROP TABLE projects; PRAGMA user_version = 2");
  reopen();
  EXPECT_EQ(store_->peak_ratio("cpu"), known);
  EXPECT_TRUE(store_->projects().empty());
}

TEST_F(StoreTest, KeepsAMeanOfPeaksOverPredictions) {
  EXPECT_EQ(store_->peak_ratio("cpu"), 1);
  EXPECT_DOUBLE_EQ(store_->add_peak_ratio("cpu", 1.4), 1.1);
  EXPECT_DOUBLE_EQ(store_->add_peak_ratio("cpu", 1.1), 1.1);
  store_->commit();
  store_.reset();
  auto opened = Store::open(path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_DOUBLE_EQ((*opened)->peak_ratio("cpu"), 1.1);
  EXPECT_EQ((*opened)->peak_ratio("NVIDIA H100"), 1);
}

TEST_F(StoreTest, ANameIsEnoughForOneUnfinishedJob) {
  insert("x-1", "x", v1::Job::SUCCEEDED);
  EXPECT_EQ(store_->queries().find("x").status().code(), absl::StatusCode::kNotFound);
  insert("x-2", "x", v1::Job::QUEUED);
  EXPECT_EQ(store_->queries().find("x")->job().id(), "x-2");
  insert("x-3", "x", v1::Job::RUNNING);
  EXPECT_EQ(store_->queries().find("x").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->queries().find("x-1")->job().id(), "x-1");
}

TEST_F(StoreTest, ListsNewestFirstByState) {
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

TEST_F(StoreTest, KeepsProjects) {
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

TEST_F(StoreTest, AnIllegalTransitionStopsTheProcess) {
  const SystemClock clock;
  JobTable jobs(*store_, clock, [] { return 7u; });
  v1::JobSpec spec;
  spec.set_name("a");
  JobRecord& record = jobs.create(spec, spec, "r");
  EXPECT_DEATH(jobs.transition(record, v1::Job::SUCCEEDED, ""), "QUEUED to SUCCEEDED");
}

}  // namespace
}  // namespace tessera::server
