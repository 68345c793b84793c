#include "server/telemetry/histories.h"

#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "server/jobs/job_table.h"
#include "server/telemetry/sparkline.h"

namespace tessera::server {
namespace {

class HistoryTest : public testing::Test {
 protected:
  HistoryTest() {
    char pattern[] = "/tmp/tessera-history-XXXXXX";
    directory_ = mkdtemp(pattern);
    store_ = *Store::open(directory_ / "tessera.db");
    reader_ = std::make_unique<Reader>(directory_ / "tessera.db");
    record_.mutable_job()->set_id("a");
    store_->insert(record_, "request", record_.job().spec());
    store_->update(record_);
    store_->commit();
  }
  ~HistoryTest() override { std::filesystem::remove_all(directory_); }

  void append(v1::Event event, int attempt = 1) {
    event.set_attempt(attempt);
    *event.mutable_time() = to_proto(absl::FromUnixSeconds(1000));
    store_->append(record_.number(), event);
    record_.mutable_job()->set_revision(event.revision());
  }
  void step(int step, double loss) {
    v1::Event event;
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_loss(loss);
    event.mutable_step()->mutable_time()->set_total_seconds(0.5);
    append(event);
  }
  void memory(int rank, int attempt, int64_t bytes) {
    v1::Event event;
    event.mutable_memory()->set_rank(rank);
    event.mutable_memory()->set_current_bytes(bytes);
    v1::OwnerBytes& owner = *event.mutable_memory()->add_owners();
    owner.set_owner("parameters");
    owner.set_current_bytes(bytes);
    append(event, attempt);
  }
  void commit() {
    store_->update(record_);
    store_->commit();
  }
  float last_loss(const JobHistory& history) {
    for (const ThinnedColumn& column : history.steps().columns()) {
      if (column.name() == "loss") return column.mean(column.mean_size() - 1);
    }
    return -1;
  }

  const SystemClock clock_;
  std::filesystem::path directory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Reader> reader_;
  JobRecord record_;
};

TEST_F(HistoryTest, GoesOnWhereItWas) {
  Histories histories(*reader_, clock_);
  step(1, 4);
  commit();
  EXPECT_EQ(histories.get(record_.number(), 100, 0).steps().last_step_size(), 1);
  for (int i = 2; i <= 700; ++i) step(i, 4.0 / i);
  commit();
  const JobHistory history = histories.get(record_.number(), 1000, 0);
  EXPECT_EQ(history.revision(), record_.job().revision());
  EXPECT_FALSE(history.is_partial());
  EXPECT_EQ(history.steps().last_step_size(), 700);
  EXPECT_FLOAT_EQ(last_loss(history), 4.0f / 700);
}

TEST_F(HistoryTest, WithoutPatienceItComesInParts) {
  Histories histories(*reader_, clock_);
  for (int i = 1; i <= 700; ++i) step(i, 1);
  commit();
  int turns = 0;
  JobHistory history;
  do {
    history = histories.get(record_.number(), 1000, 0, -absl::Seconds(1));
    ++turns;
  } while (history.is_partial());
  EXPECT_GE(turns, 3);
  EXPECT_EQ(history.steps().last_step_size(), 700);
}

TEST_F(HistoryTest, KeepsWhatWasAskedForLast) {
  Histories histories(*reader_, clock_);
  step(1, 1);
  commit();
  for (int64_t number = 1; number <= 40; ++number) histories.get(number, 10, 0);
  EXPECT_EQ(histories.get(record_.number(), 10, 0).steps().last_step_size(), 1);
}

TEST_F(HistoryTest, ShowsTheRanksOfTheLatestAttempt) {
  memory(0, 1, 10);
  memory(1, 1, 20);
  memory(0, 2, 30);
  commit();
  const JobHistory history = Histories(*reader_, clock_).get(record_.number(), 10, 0);
  ASSERT_EQ(history.ranks_size(), 1);
  EXPECT_EQ(history.ranks(0).last().current_bytes(), 30);
  EXPECT_EQ(history.ranks(0).memory().last_step_size(), 2);
}

TEST_F(HistoryTest, MemoryOverTimeIsOfTheRankAskedFor) {
  memory(0, 1, 10);
  memory(1, 1, 20);
  commit();
  const JobHistory history = Histories(*reader_, clock_).get(record_.number(), 10, 1);
  ASSERT_EQ(history.ranks_size(), 2);
  EXPECT_EQ(history.ranks(0).memory().columns_size(), 0);
  EXPECT_GT(history.ranks(1).memory().columns_size(), 0);
}

TEST_F(HistoryTest, EventsThatAreFewAreKept) {
  v1::Event state, log, unknown;
  state.mutable_state()->set_state(v1::Job::RUNNING);
  append(state);
  log.mutable_log()->set_text("hello");
  append(log);
  append(unknown);
  for (int i = 0; i < 1000; ++i) append(log);
  commit();
  const JobHistory history = Histories(*reader_, clock_).get(record_.number(), 10, 0);
  ASSERT_EQ(history.milestones_size(), 2) << "a kind that is not known yet is kept, too";
  EXPECT_EQ(history.milestones(0).state().state(), v1::Job::RUNNING);
  EXPECT_LT(history.log_size(), 500);
  EXPECT_EQ(history.log(history.log_size() - 1).revision(), record_.job().revision());
}

TEST_F(HistoryTest, ASparklineHasFewPointsOfAShortJobAndOfALongOne) {
  const auto line = [&] {
    return (*reader_)([&](Queries& queries) { return sparkline(queries, record_); });
  };
  EXPECT_EQ(line().step_size(), 0);
  for (int i = 1; i <= 30; ++i) step(i, i);
  commit();
  EXPECT_EQ(line().step_size(), 30);
  EXPECT_EQ(line().loss(29), 30);
  for (int i = 31; i <= 5000; ++i) step(i, i);
  commit();
  const Sparkline long_one = line();
  EXPECT_GT(long_one.step_size(), kMaxSparklinePoints / 2);
  EXPECT_LE(long_one.step_size(), kMaxSparklinePoints);
  EXPECT_GT(long_one.step(long_one.step_size() - 1), 4500);
  for (int i = 1; i < long_one.step_size(); ++i) EXPECT_GT(long_one.step(i), long_one.step(i - 1));
}

TEST_F(HistoryTest, HasWhatRanksToldOfTheirExchangesAndTraces) {
  const auto told = [&](int rank, int attempt, const char* phase) {
    v1::Event event;
    event.mutable_collectives()->set_rank(rank);
    event.mutable_collectives()->set_phase(phase);
    append(event, attempt);
  };
  told(0, 1, "data");
  told(1, 1, "data");
  told(1, 2, "forward");
  told(1, 2, "backward");
  v1::Event event;
  event.mutable_trace()->set_path("/out/traces/step-3-rank-1.json");
  append(event, 2);
  commit();
  const JobHistory history = Histories(*reader_, clock_).get(record_.number(), 100, 0);
  ASSERT_EQ(history.collectives_size(), 1) << "of the last attempt that told any";
  EXPECT_EQ(history.collectives(0).collectives().phase(), "backward");
  ASSERT_EQ(history.traces_size(), 1);
  EXPECT_EQ(history.traces(0).trace().path(), "/out/traces/step-3-rank-1.json");
  EXPECT_EQ(history.milestones_size(), 0);
}

TEST_F(HistoryTest, DrawsTheRanksOfAStep) {
  v1::Event event;
  event.mutable_step()->set_step(1);
  for (const double busy : {1., 3.}) {
    event.mutable_step()->add_rank_times()->set_busy_seconds(busy);
  }
  append(event);
  commit();
  const JobHistory history = Histories(*reader_, clock_).get(record_.number(), 100, 0);
  std::map<std::string, float> means;
  for (const ThinnedColumn& column : history.steps().columns()) {
    means[column.name()] = column.mean(0);
  }
  EXPECT_EQ(means.at("busy/max"), 3);
  EXPECT_EQ(means.at("busy/median"), 1);
  EXPECT_EQ(means.at("busy/min"), 1);
}

}  // namespace
}  // namespace tessera::server
