#include "worker/trainer/control.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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

TEST_F(Control, ALeaseHoldsWhileItsFileIsFresh) {
  v1::TrainerInput input;
  Lease(input).check();  // none asked for
  input.set_lease_path((directory_ / "lease").string());
  input.set_fence_ms(60'000);
  EXPECT_THROW(Lease(input).check(), NetworkError);
  std::ofstream(input.lease_path()) << "";
  Lease(input).check();
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, input.lease_path().c_str(), old, 0), 0);
  EXPECT_THROW(Lease(input).check(), NetworkError);
}

TEST_F(Control, AnExpiredLeaseIsNoticedWhateverTheRankWaitsFor) {
  v1::TrainerInput input;
  input.set_lease_path((directory_ / "lease").string());
  input.set_fence_ms(60'000);
  std::ofstream(input.lease_path()) << "";
  std::promise<std::string> expired;
  auto why = expired.get_future();
  const LeaseWatch watch(Lease(input), [&](const std::string& text) { expired.set_value(text); });
  EXPECT_EQ(why.wait_for(2 * LeaseWatch::kPeriod), std::future_status::timeout);
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, input.lease_path().c_str(), old, 0), 0);
  EXPECT_THAT(why.get(), testing::HasSubstr("the coordinator was not reached for 60 s"));
}

TEST_F(Control, ALeaseIsWatchedForAsLongAsTheWatchLives) {
  v1::TrainerInput input;
  const auto fail = [](const std::string& why) { FAIL() << why; };
  const LeaseWatch none(Lease(input), fail);  // none asked for
  input.set_lease_path((directory_ / "lease").string());
  input.set_fence_ms(60'000);
  std::ofstream(input.lease_path()) << "";
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
