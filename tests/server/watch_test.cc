// WatchJob: every event once and in order, whatever happens meanwhile.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "tests/server/service.h"

namespace tessera::server {
namespace {

constexpr int kNumSteps = 600;

// Follows the job, breaking off after every `stride` events and coming back.
std::vector<v1::Event> follow_in_pieces(Service& service, const std::string& id, int stride) {
  std::vector<v1::Event> events;
  bool over = false;
  while (!over) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::WatchJobRequest request;
    request.set_id(id);
    request.set_start_revision(events.empty() ? 0 : events.back().revision() + 1);
    auto stream = service.stub().WatchJob(&context, request);
    v1::WatchJobResponse response;
    int count = 0;
    while (count < stride && stream->Read(&response)) {
      events.push_back(response.event());
      ++count;
    }
    over = count < stride;
    if (!over) context.TryCancel();
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.ok(), over) << status.error_message();
  }
  return events;
}

TEST(Watch, ResumesWithoutLossOrRepeatWhileEventsCome) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  std::vector<std::vector<v1::Event>> seen(4);
  std::vector<std::thread> watchers;
  for (size_t i = 0; i < seen.size(); ++i) {
    watchers.emplace_back(
        [&, i] { seen[i] = follow_in_pieces(service, job.id(), i == 0 ? 1 << 20 : 7 * i + 1); });
  }
  for (int step = 1; step <= kNumSteps; ++step) agent.step(run, 0, step);
  agent.finished(run, 0);
  agent.ended(run);
  for (std::thread& watcher : watchers) watcher.join();
  const std::vector<v1::Event> stored = service.events(job.id());
  for (const auto& events : seen) {
    ASSERT_EQ(events.size(), stored.size());
    int last_step = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      ASSERT_EQ(events[i].revision(), stored[i].revision());
      if (events[i].has_step()) {
        ASSERT_EQ(events[i].step().step(), ++last_step);
      }
    }
    EXPECT_EQ(last_step, kNumSteps);
    EXPECT_EQ(events.back().state().state(), v1::Job::SUCCEEDED);
  }
}

// One batch of rank 0, which is one commit.
void commit_lines(Agent& agent, const v1::RunId& run, int count, int bytes) {
  v1::SessionRequest request;
  v1::EventBatch& batch = *request.mutable_event_batch();
  *batch.mutable_run() = run;
  batch.set_begin_offset(agent.offsets[0]);
  batch.set_end_offset(agent.offsets[0] += 10);
  for (int i = 0; i < count; ++i) {
    batch.add_events()->mutable_log()->set_text(std::string(static_cast<size_t>(bytes), 'x'));
  }
  agent.send(request);
  EXPECT_EQ(agent.next(v1::SessionResponse::kAck).ack().cursor().offset(), agent.offsets[0]);
}

// More or less than a page at a time, to watchers that have seen all before, and to one that asks
// for what is to come.
TEST(Watch, SeesCommitsOfAnySize) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  const int64_t later = service.get(job.id()).revision() + 100;
  std::vector<v1::Event> seen, seen_later;
  std::thread watcher([&] { seen = service.events(job.id(), 0, true); });
  std::thread late_watcher([&] { seen_later = service.events(job.id(), later, true); });
  for (const auto& [count, bytes] : {std::pair(1, 10), {300, 10}, {40, 8192}, {2, 10}, {128, 9}}) {
    commit_lines(agent, run, count, bytes);
  }
  agent.finished(run, 0);
  agent.ended(run);
  watcher.join();
  late_watcher.join();
  const auto revisions = [](const std::vector<v1::Event>& events) {
    std::vector<int64_t> numbers;
    for (const v1::Event& event : events) numbers.push_back(event.revision());
    return numbers;
  };
  EXPECT_EQ(revisions(seen), revisions(service.events(job.id())));
  EXPECT_EQ(revisions(seen_later), revisions(service.events(job.id(), later)));
  EXPECT_EQ(seen_later.back().state().state(), v1::Job::SUCCEEDED);
}

TEST(Watch, EndsAtOnceForAJobThatHasEnded) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  service.cancel(job.id());
  const auto events = service.events(job.id(), 0, true);
  EXPECT_EQ(events.back().state().state(), v1::Job::CANCELLED);
  EXPECT_TRUE(service.events(job.id(), events.back().revision() + 1, true).empty());
}

TEST(Watch, WithoutFollowEndsAfterTheStoredEvents) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  EXPECT_EQ(service.events(job.id()).front().state().state(), v1::Job::QUEUED);
}

TEST(Watch, ALiveWatcherSeesTheEnd) {
  Service service;
  const v1::Job job = service.submit(make_spec());
  std::vector<v1::Event> events;
  std::thread watcher([&] { events = service.events(job.id(), 0, true); });
  service.cancel(job.id());
  watcher.join();
  EXPECT_EQ(events.back().state().state(), v1::Job::CANCELLED);
}

TEST(Watch, AWatcherThatDoesNotReadCostsLessThanAMebibyte) {
  constexpr int kNumWatchers = 64, kNumLines = 400, kLineBytes = 16 << 10;
  Service service;
  const v1::Job job = service.submit(make_spec());
  Agent agent(service, "n1", 1);
  const v1::RunId run = agent.prepare().run();
  agent.started(run, 0);
  v1::TrainerEvent line;
  line.mutable_log()->set_text(std::string(kLineBytes, 'x'));
  for (int i = 0; i < kNumLines; ++i) agent.event(run, 0, line);
  ASSERT_GT(service.events(job.id()).size(), kNumLines);  // what reading costs it once is no more

  struct SlowWatcher {
    std::unique_ptr<v1::Coordinator::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>> stream;
  };
  const int64_t before = service.process().resident_bytes();
  v1::WatchJobRequest request;
  request.set_id(job.id());
  std::vector<SlowWatcher> watchers(kNumWatchers);
  for (SlowWatcher& watcher : watchers) {
    watcher.stub = v1::Coordinator::NewStub(support::make_channel(service.process().address()));
    watcher.stream = watcher.stub->WatchJob(&watcher.context, request);
    v1::WatchJobResponse first;  // the page it is of is there by then
    ASSERT_TRUE(watcher.stream->Read(&first));
  }
  EXPECT_LT(service.process().resident_bytes() - before, int64_t{kNumWatchers} << 20);
  for (SlowWatcher& watcher : watchers) watcher.context.TryCancel();
}

}  // namespace
}  // namespace tessera::server
