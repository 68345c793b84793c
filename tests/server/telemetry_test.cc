// What /metrics says of jobs and of the service, and for how long.
#include "server/telemetry/metrics_page.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/telemetry/service_metrics.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;
using testing::Not;
using v1::Job;

class TurnedClock final : public Clock {
 public:
  absl::Time wall() const override { return absl::FromUnixSeconds(1000) + passed; }
  absl::Duration uptime() const override { return passed; }
  absl::Duration passed;
};

v1::Event state_event(Job::State state, Job::State previous, int64_t seconds,
                      v1::Failure::Kind failure = v1::Failure::KIND_UNSPECIFIED) {
  v1::Event event;
  event.mutable_state()->set_state(state);
  event.mutable_state()->set_previous(previous);
  if (failure != v1::Failure::KIND_UNSPECIFIED) {
    event.mutable_state()->mutable_failure()->set_kind(failure);
  }
  event.mutable_time()->set_seconds(seconds);
  return event;
}

v1::Event step_event(int step, int64_t seconds) {
  v1::Event event;
  event.mutable_step()->set_step(step);
  event.mutable_step()->mutable_time()->set_total_seconds(4);
  event.mutable_step()->mutable_time()->set_communication_wait_seconds(3);
  event.mutable_time()->set_seconds(seconds);
  return event;
}

JobChange change_of(const std::string& id, Job::State state, std::vector<v1::Event> events) {
  JobChange change;
  change.job.set_id(id);
  change.job.mutable_spec()->set_name("demo");
  change.job.set_state(state);
  change.job.set_attempt(state == Job::QUEUED ? 0 : 1);
  change.events = std::move(events);
  return change;
}

std::string page_of(Telemetry& telemetry) {
  Overview overview;
  overview.jobs = telemetry.recent();
  overview.oldest_queued = telemetry.oldest_queued();
  return render_metrics(overview, {});
}

std::string page_of(const ServiceMetrics& metrics) {
  Overview overview;
  overview.service = metrics.collect();
  return render_metrics(overview, {});
}

// Not a series a rank: a job may have thousands.
TEST(JobMetrics, RanksAreFourNumbers) {
  TurnedClock clock;
  Telemetry telemetry(clock);
  v1::Event event = step_event(3, 1000);
  for (const double busy : {2., 5., 3., 4.}) {
    event.mutable_step()->add_rank_times()->set_busy_seconds(busy);
  }
  telemetry.record({change_of("a-1", Job::RUNNING, {event, event})});
  const std::string page = page_of(telemetry);
  const std::string labels = "job=\"a-1\",name=\"demo\"";
  for (const auto& [stat, seconds] :
       {std::pair("min", 2), std::pair("median", 3), std::pair("max", 5)}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("tessera_job_rank_busy_seconds{", labels, ",stat=\"",
                                             stat, "\"} ", seconds)));
  }
  EXPECT_THAT(page, HasSubstr(absl::StrCat("tessera_job_slowest_rank{", labels, "} 1")));
}

TEST(JobMetrics, SeriesOfAJobGoAwayTenMinutesAfterItsEnd) {
  TurnedClock clock;
  Telemetry telemetry(clock);
  telemetry.record({change_of("a-1", Job::RUNNING, {step_event(3, 1000)})});
  clock.passed = absl::Hours(5);
  EXPECT_THAT(page_of(telemetry), HasSubstr("job=\"a-1\""));
  telemetry.record(
      {change_of("a-1", Job::FAILED, {state_event(Job::FAILED, Job::RUNNING, 19000)})});
  clock.passed += absl::Minutes(9);
  EXPECT_THAT(page_of(telemetry),
              HasSubstr("tessera_job_state{job=\"a-1\",name=\"demo\",state=\"failed\"} 1"));
  clock.passed += absl::Minutes(2);
  EXPECT_THAT(page_of(telemetry), Not(HasSubstr("a-1")));
}

TEST(JobMetrics, AThousandEndedJobsAreAHundredSeries) {
  TurnedClock clock;
  Telemetry telemetry(clock);
  for (int i = 0; i < 1000; ++i) {
    clock.passed += absl::Milliseconds(1);
    telemetry.record({change_of(absl::StrCat("a-", i), Job::SUCCEEDED, {})});
  }
  const std::string page = page_of(telemetry);
  EXPECT_THAT(page, HasSubstr("job=\"a-999\""));
  EXPECT_THAT(page, Not(HasSubstr("job=\"a-899\"")));
  EXPECT_EQ(telemetry.recent().size(), 100u);
}

TEST(JobMetrics, AJobThatOnlyWaitsHasNoSeriesOfItsOwn) {
  TurnedClock clock;
  Telemetry telemetry(clock);
  std::vector<JobChange> changes{change_of("a-1", Job::QUEUED, {}),
                                 change_of("a-2", Job::QUEUED, {})};
  changes[0].job.mutable_create_time()->set_seconds(700);
  changes[1].job.mutable_create_time()->set_seconds(600);
  telemetry.record(changes);
  const std::string page = page_of(telemetry);
  EXPECT_THAT(page, Not(HasSubstr("job=")));
  EXPECT_THAT(page, HasSubstr("tessera_queue_oldest_timestamp_seconds 600\n"));
  EXPECT_TRUE(telemetry.recent().empty());
  // The one that starts waits no more, and once it is back in the queue it waits anew.
  telemetry.record(
      {change_of("a-2", Job::STARTING, {state_event(Job::STARTING, Job::QUEUED, 800)})});
  EXPECT_THAT(page_of(telemetry), HasSubstr("tessera_queue_oldest_timestamp_seconds 700\n"));
  telemetry.record({change_of("a-1", Job::CANCELLED, {})});
  JobChange back = change_of("a-2", Job::QUEUED, {state_event(Job::QUEUED, Job::RESTARTING, 900)});
  back.job.set_attempt(1);
  telemetry.record({back});
  EXPECT_THAT(page_of(telemetry), HasSubstr("tessera_queue_oldest_timestamp_seconds 900\n"));
}

TEST(JobMetrics, ProgressAndStateHaveTheirTimes) {
  TurnedClock clock;
  Telemetry telemetry(clock);
  telemetry.record({change_of(
      "a-1", Job::RUNNING,
      {state_event(Job::RUNNING, Job::STARTING, 1200), step_event(1, 1300), step_event(2, 1400)})});
  const std::string page = page_of(telemetry);
  const auto says = [&](const std::string& name, const char* more, const char* value) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("tessera_job_", name, "{job=\"a-1\",name=\"demo\"",
                                             more, "} ", value, "\n")));
  };
  says("state_timestamp_seconds", "", "1200");
  says("progress_timestamp_seconds", "", "1400");
  says("attempts", "", "1");
  says("step_duration_seconds", "", "4");
  says("step_part_seconds", ",part=\"communication_wait\"", "3");
  EXPECT_THAT(page, Not(HasSubstr("tessera_queue_oldest")));
}

TEST(NodeMetrics, ALostNodeIsNotUp) {
  Overview overview;
  for (const auto& [name, state] : {std::pair{"n1", v1::Node::READY}, {"n2", v1::Node::LOST}}) {
    v1::Node& node = overview.nodes.emplace_back();
    node.set_name(name);
    node.set_state(state);
    node.mutable_last_seen_time()->set_seconds(1234);
  }
  const std::string page = render_metrics(overview, {});
  EXPECT_THAT(page, HasSubstr("tessera_node_up{node=\"n1\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("tessera_node_up{node=\"n2\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("tessera_node_last_seen_timestamp_seconds{node=\"n2\"} 1234\n"));
}

TEST(ServiceMetrics, CountsWhatJobsDo) {
  TurnedClock clock;
  ServiceMetrics metrics(clock, std::filesystem::temp_directory_path());
  const auto says = [&](const std::string& line) {
    EXPECT_THAT(page_of(metrics), HasSubstr("\ntessera_" + line + "\n"));
  };
  says("jobs_ended_total{failure=\"hang\",state=\"failed\"} 0");
  metrics.record({change_of("a-1", Job::FAILED,
                            {state_event(Job::QUEUED, Job::STATE_UNSPECIFIED, 1),
                             state_event(Job::STARTING, Job::QUEUED, 2),
                             state_event(Job::RESTARTING, Job::STARTING, 3, v1::Failure::NETWORK),
                             state_event(Job::FAILED, Job::RESTARTING, 4, v1::Failure::HANG)}),
                  change_of("a-2", Job::CANCELLED,
                            {state_event(Job::QUEUED, Job::STATE_UNSPECIFIED, 1),
                             state_event(Job::CANCELLED, Job::QUEUED, 4)})});
  says("jobs_submitted_total 2");
  says("attempts_total 1");
  says("restarts_total{failure=\"network\"} 1");
  says("jobs_ended_total{failure=\"hang\",state=\"failed\"} 1");
  says("jobs_ended_total{failure=\"\",state=\"cancelled\"} 1");
  says("jobs_ended_total{failure=\"\",state=\"succeeded\"} 0");
}

TEST(ServiceMetrics, OnlyRoundsThatChangeAJobAreTimed) {
  TurnedClock clock;
  ServiceMetrics metrics(clock, std::filesystem::temp_directory_path());
  metrics.time_round([&] { clock.passed += absl::Seconds(9); });
  metrics.time_round([&] {
    clock.passed += absl::Milliseconds(20);
    metrics.record({change_of("a-1", Job::QUEUED, {})});
  });
  const std::string page = page_of(metrics);
  EXPECT_THAT(page, HasSubstr("tessera_commit_duration_seconds_count 1\n"));
  EXPECT_THAT(page, HasSubstr("tessera_commit_duration_seconds_bucket{le=\"0.01\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("tessera_commit_duration_seconds_bucket{le=\"0.025\"} 1\n"));
}

TEST(ServiceMetrics, TheServiceItself) {
  TurnedClock clock;
  const ServiceMetrics metrics(clock, std::filesystem::temp_directory_path());
  clock.passed = absl::Hours(1);
  const std::string page = page_of(metrics);
  EXPECT_THAT(page, HasSubstr("\nprocess_start_time_seconds 1000\n"));
  EXPECT_THAT(page, HasSubstr("\ntessera_build_info{version=\""));
  EXPECT_THAT(page, HasSubstr("\ntessera_state_available_bytes "));
  EXPECT_THAT(page, HasSubstr("\ntessera_state_capacity_bytes "));
}

TEST(ServiceMetrics, AnOutageOfTheStateIsAZero) {
  TurnedClock clock;
  ServiceMetrics metrics(clock, std::filesystem::temp_directory_path());
  EXPECT_THAT(page_of(metrics), HasSubstr("\ntessera_state_writable 1\n"));
  metrics.set_writable(false);
  EXPECT_THAT(page_of(metrics), HasSubstr("\ntessera_state_writable 0\n"));
}

}  // namespace
}  // namespace tessera::server
