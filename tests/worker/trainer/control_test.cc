#include "worker/trainer/control.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <sstream>

#include "worker/parallel/collectives.h"
#include "worker/trainer/events.h"

namespace tessera {
namespace {

class Control : public testing::Test {
 protected:
  Control() {
    char pattern[] = "/tmp/tessera-control-XXXXXX";
    directory_ = mkdtemp(pattern);
  }
  ~Control() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

std::string delimited(const v1::TrainerCommand& command) {
  std::ostringstream stream;
  google::protobuf::util::SerializeDelimitedToOstream(command, &stream);
  return stream.str();
}

TEST_F(Control, CommandsAreTakenOnceAlsoWhenTheyArriveInPieces) {
  const auto path = directory_ / "commands";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  CommandReader reader(path);
  EXPECT_FALSE(reader.take().stop);
  const int fd = open(path.c_str(), O_WRONLY);
  v1::TrainerCommand save, stop;
  save.mutable_save_checkpoint();
  stop.mutable_stop()->set_save_checkpoint(true);
  const std::string bytes = delimited(save) + delimited(stop);
  ASSERT_EQ(write(fd, bytes.data(), bytes.size() - 1), ssize_t(bytes.size() - 1));
  CommandReader::Pending first = reader.take();
  EXPECT_TRUE(first.save_checkpoint);
  EXPECT_FALSE(first.stop);
  ASSERT_EQ(write(fd, bytes.data() + bytes.size() - 1, 1), 1);
  close(fd);
  EXPECT_TRUE(reader.take().stop);
  EXPECT_FALSE(reader.take().stop);
}

// The thread that trains may be in a collective for ever.
TEST_F(Control, ARecordIsMadeAlthoughNobodyTakesCommands) {
  const auto path = directory_ / "commands";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::promise<void> asked;
  CommandReader reader(path, [&] { asked.set_value(); });
  const int fd = open(path.c_str(), O_WRONLY);
  v1::TrainerCommand trace, record;
  trace.mutable_trace_steps()->set_num_steps(3);
  trace.mutable_trace_steps()->set_first_step(7);
  record.mutable_record_collectives();
  const std::string bytes = delimited(trace) + delimited(record);
  ASSERT_EQ(write(fd, bytes.data(), bytes.size()), ssize_t(bytes.size()));
  close(fd);
  asked.get_future().wait();
  const CommandReader::Pending pending = reader.take();
  ASSERT_EQ(pending.traces.size(), 1u);
  EXPECT_EQ(pending.traces[0].num_steps(), 3);
  EXPECT_EQ(pending.traces[0].first_step(), 7);
  EXPECT_TRUE(reader.take().traces.empty());
}

// Makes the lease's file, renewed as it is now.
void renew(const std::string& path, spec::BootClock::time_point time = spec::BootClock::now()) {
  std::ofstream(path) << "";
  const auto nanoseconds = time.time_since_epoch().count();
  const timespec both{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  const timespec times[2] = {both, both};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST_F(Control, ALeaseHoldsForTheFencePeriodAfterItWasRenewed) {
  v1::TrainerInput input;
  Lease(input).check();  // none asked for
  input.set_lease_path((directory_ / "lease").string());
  input.set_fence_ms(60'000);
  EXPECT_THROW(Lease(input).check(), NetworkError);
  const spec::BootClock::time_point begin{std::chrono::hours(5)};
  auto now = begin;
  const Lease lease(input, [&] { return now; });
  renew(input.lease_path(), begin);
  lease.check();
  now = begin + std::chrono::seconds(60);
  lease.check();
  now = begin + std::chrono::milliseconds(60'001);
  EXPECT_THROW(lease.check(), NetworkError);
  renew(input.lease_path(), now);
  lease.check();
}

// A step of the machine's date changes neither of the two times, and a file that the date is the
// time of, as any other program would leave it, is no lease: it would hold for ever.
TEST_F(Control, ALeaseIsNoMatterOfDates) {
  v1::TrainerInput input;
  input.set_lease_path((directory_ / "lease").string());
  input.set_fence_ms(60'000);
  renew(input.lease_path());
  Lease(input).check();
  ASSERT_EQ(utimensat(AT_FDCWD, input.lease_path().c_str(), nullptr, 0), 0);
  EXPECT_THROW(Lease(input).check(), NetworkError);
}

TEST_F(Control, AnExpiredLeaseIsNoticedWhateverTheRankWaitsFor) {
  v1::TrainerInput input;
  input.set_lease_path((directory_ / "lease").string());
  input.set_fence_ms(60'000);
  renew(input.lease_path());
  std::atomic<bool> is_over = false;
  std::promise<std::string> expired;
  auto why = expired.get_future();
  const Lease lease(input,
                    [&] { return spec::BootClock::now() + std::chrono::hours(is_over ? 1 : 0); });
  const LeaseWatch watch(lease, [&](const std::string& text) { expired.set_value(text); });
  EXPECT_EQ(why.wait_for(2 * LeaseWatch::kPeriod), std::future_status::timeout);
  is_over = true;
  EXPECT_THAT(why.get(), testing::HasSubstr("the coordinator was not reached for 60 s"));
}

TEST_F(Control, ALeaseIsWatchedForAsLongAsTheWatchLives) {
  v1::TrainerInput input;
  const auto fail = [](const std::string& why) { FAIL() << why; };
  const LeaseWatch none(Lease(input), fail);  // none asked for
  input.set_lease_path((directory_ / "lease").string());
  input.set_fence_ms(60'000);
  renew(input.lease_path());
  {
    const LeaseWatch watch(Lease(input), fail);
  }
  std::filesystem::remove(input.lease_path());
}

TEST_F(Control, EventsAreAppendedWholeAndReadBack) {
  const auto path = directory_ / "events";
  for (int run = 0; run < 2; ++run) {
    EventWriter writer(path);
    writer.log(v1::LogLine::INFO, run, "line");
    writer.progress("load", 0);
    writer.progress("load", 0);  // within a second: dropped
  }
  std::ifstream file(path, std::ios::binary);
  google::protobuf::io::IstreamInputStream stream(&file);
  std::vector<v1::TrainerEvent> events;
  v1::TrainerEvent event;
  bool clean_eof = false;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&event, &stream, &clean_eof)) {
    events.push_back(event);
    event.Clear();
  }
  EXPECT_TRUE(clean_eof);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].log().text(), "line");
  EXPECT_TRUE(events[0].has_time());
  EXPECT_EQ(events[3].progress().phase(), "load");
}

}  // namespace
}  // namespace tessera
