// Events of a rank whose disk is full: they wait, the file shows that the rank lives, and all of
// them are there, whole and in order, once there is room.
#include "worker/trainer/events.h"

#include <fcntl.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <system_error>
#include <thread>

#include "tests/faults/disk.h"

namespace tessera {
namespace {

constexpr int64_t kDiskBytes = 1 << 20;
constexpr int kLongText = 100'000;

class EventsOnAFullDisk : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/events-XXXXXX";
    directory_ = mkdtemp(pattern);
    std::string why;
    disk_ = faults::SmallDisk::mount(directory_ / "disk", kDiskBytes, why);
    if (!disk_) GTEST_SKIP() << why;
  }

  void TearDown() override {
    disk_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::filesystem::path path() const { return directory_ / "disk/events"; }

  // The texts of the log lines in the file.
  std::vector<std::string> texts() const {
    std::ifstream file(path(), std::ios::binary);
    google::protobuf::io::IstreamInputStream stream(&file);
    std::vector<std::string> texts;
    v1::TrainerEvent event;
    bool is_at_end = false;
    while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&event, &stream, &is_at_end)) {
      texts.push_back(event.log().text());
    }
    EXPECT_TRUE(is_at_end) << "an event is torn";
    return texts;
  }

  std::filesystem::path directory_;
  std::optional<faults::SmallDisk> disk_;
};

TEST_F(EventsOnAFullDisk, WaitForRoom) {
  EventWriter events(path());
  std::vector<std::string> expected;
  const auto log = [&](const std::string& text) {
    events.log(v1::LogLine::INFO, 0, text);
    expected.push_back(text);
  };
  log("before");
  disk_->fill();
  const auto before = std::filesystem::last_write_time(path());
  // The first of these fills the last page, and is torn.
  for (int i = 0; i < 50; ++i) log(std::string(kLongText / 10, 'a') + std::to_string(i));
  EXPECT_GT(std::filesystem::last_write_time(path()), before);
  disk_->empty();
  log("after");
  EXPECT_EQ(texts(), expected);
}

TEST(EventTimes, AreFinerThanSeconds) {
  char pattern[] = "/tmp/events-XXXXXX";
  const std::filesystem::path directory = mkdtemp(pattern);
  {
    EventWriter events(directory / "events");
    for (int i = 0; i < 3; ++i) events.log(v1::LogLine::INFO, 0, "now");
  }
  std::ifstream file(directory / "events", std::ios::binary);
  google::protobuf::io::IstreamInputStream stream(&file);
  v1::TrainerEvent event;
  bool are_whole = true;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&event, &stream, nullptr)) {
    are_whole = are_whole && event.time().nanos() == 0;
  }
  EXPECT_FALSE(are_whole);
  std::filesystem::remove_all(directory);
}

TEST_F(EventsOnAFullDisk, FlushWaitsForRoom) {
  EventWriter events(path());
  disk_->fill();
  events.log(v1::LogLine::INFO, 0, std::string(kLongText, 'b'));
  EXPECT_TRUE(std::filesystem::file_size(path()) < kLongText);
  std::jthread flushing([&] { events.flush(); });
  disk_->empty();
  flushing.join();
  EXPECT_EQ(texts(), std::vector<std::string>{std::string(kLongText, 'b')});
}

TEST_F(EventsOnAFullDisk, AreBounded) {
  EventWriter events(path());
  disk_->fill();
  size_t written = 0;
  const auto write_for_ever = [&] {
    while (written < 2 * EventWriter::kMaxWaitingBytes) {
      events.log(v1::LogLine::INFO, 0, std::string(kLongText, 'c'));
      written += kLongText;
    }
  };
  EXPECT_THROW(write_for_ever(), std::system_error);
  EXPECT_GT(written + 2 * kLongText, EventWriter::kMaxWaitingBytes);
}

}  // namespace
}  // namespace tessera
