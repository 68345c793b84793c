#include "worker/agent/stream_tail.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "tests/worker/agent/temp_dir.h"

namespace tessera::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string delimited(const v1::TrainerEvent& event) {
  std::ostringstream bytes;
  google::protobuf::util::SerializeDelimitedToOstream(event, &bytes);
  return bytes.str();
}

std::string step_event(int step) {
  v1::TrainerEvent event;
  event.mutable_step()->set_step(step);
  return delimited(event);
}

class StreamTailTest : public testing::Test {
 protected:
  void append(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::app) << bytes;
  }
  static v1::EventBatch read(StreamTail& tail, bool ended = false) {
    absl::StatusOr<v1::EventBatch> batch = tail.read(ended);
    EXPECT_TRUE(batch.ok()) << batch.status();
    return batch.ok() ? *batch : v1::EventBatch();
  }
  static std::vector<std::string> lines(const v1::EventBatch& batch) {
    std::vector<std::string> texts;
    for (const auto& event : batch.events()) texts.push_back(event.log().text());
    return texts;
  }

  TempDir directory_;
  std::filesystem::path path_ = directory_ / "stream";
  StreamTail events_{path_, v1::RANK_STREAM_EVENTS, 3};
  StreamTail output_{path_, v1::RANK_STREAM_OUTPUT, 3};
};

TEST_F(StreamTailTest, AMissingFileIsEmpty) {
  EXPECT_EQ(read(events_).events_size(), 0);
  append(step_event(1));
  EXPECT_EQ(read(events_).events_size(), 1);
}

TEST_F(StreamTailTest, AnEventThatIsCutAnywhereWaitsForItsRest) {
  const std::string event = step_event(1 << 20);
  for (size_t cut = 0; cut < event.size(); ++cut) {
    const int64_t begin = events_.offset();
    append(event.substr(0, cut));
    EXPECT_EQ(read(events_).events_size(), 0) << cut;
    EXPECT_EQ(read(events_, /*ended=*/true).events_size(), 0) << cut;
    append(event.substr(cut));
    const v1::EventBatch batch = read(events_);
    EXPECT_EQ(batch.begin_offset(), begin);
    EXPECT_EQ(batch.end_offset(), begin + static_cast<int64_t>(event.size()));
    EXPECT_EQ(batch.rank(), 3);
  }
}

TEST_F(StreamTailTest, BatchesAreBoundedAndJoinUp) {
  std::string bytes;
  for (int step = 1; step <= 1000; ++step) bytes += step_event(step);
  append(bytes);
  int next = 1;
  int64_t offset = 0;
  for (v1::EventBatch batch = read(events_); batch.events_size() > 0; batch = read(events_)) {
    EXPECT_LE(batch.events_size(), kMaxBatchEvents);
    EXPECT_EQ(batch.begin_offset(), offset);
    offset = batch.end_offset();
    for (const auto& event : batch.events()) EXPECT_EQ(event.step().step(), next++);
  }
  EXPECT_EQ(next, 1001);
  EXPECT_EQ(offset, static_cast<int64_t>(bytes.size()));
}

TEST_F(StreamTailTest, BatchesAreBoundedInBytes) {
  v1::TrainerEvent big;
  big.mutable_log()->set_text(std::string(kMaxEventBytes - 100, 'x'));
  append(delimited(big) + delimited(big) + step_event(1));
  EXPECT_EQ(read(events_).events_size(), 1);
  EXPECT_EQ(read(events_).events_size(), 2);
}

TEST_F(StreamTailTest, GivesGoodEventsBeforeItComplainsOfBadOnes) {
  for (const std::string& garbage :
       {std::string(16, '\xff'), std::string("\x02\x07\x07") + "rest of it",
        std::string("\xff\xff\xff\x7f") + "far too long"}) {
    std::filesystem::remove(path_);
    StreamTail tail(path_, v1::RANK_STREAM_EVENTS, 0);
    append(step_event(1) + garbage);
    EXPECT_EQ(read(tail).events_size(), 1);
    EXPECT_EQ(tail.read(false).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(tail.offset(), static_cast<int64_t>(step_event(1).size()));
  }
}

TEST_F(StreamTailTest, LinesWaitForTheirEndWhileTheWriterLives) {
  append("one\r\ntw");
  EXPECT_THAT(lines(read(output_)), ElementsAre("one"));
  EXPECT_EQ(output_.offset(), 5);
  append("o\n\nthree");
  EXPECT_THAT(lines(read(output_)), ElementsAre("two", ""));
  EXPECT_THAT(lines(read(output_, /*ended=*/true)), ElementsAre("three"));
  EXPECT_EQ(read(output_, true).events_size(), 0);
}

TEST_F(StreamTailTest, LongLinesAreCutAndSaySo) {
  append(std::string(kMaxLineBytes, 'a') + "\n" + std::string(kMaxLineBytes + 1, 'b') + "\n");
  EXPECT_THAT(lines(read(output_)),
              ElementsAre(std::string(kMaxLineBytes, 'a'),
                          std::string(kMaxLineBytes, 'b') + " [cut: the line has 8193 bytes]"));
}

TEST_F(StreamTailTest, AnEndlessLineIsTakenInParts) {
  append(std::string(kMaxBatchBytes + 10, 'a'));
  EXPECT_EQ(read(output_).end_offset(), kMaxBatchBytes);
  EXPECT_EQ(read(output_).events_size(), 0);
  append("\n");
  EXPECT_THAT(lines(read(output_)), ElementsAre(std::string(10, 'a')));
}

TEST_F(StreamTailTest, OutputPastTheBoundIsDroppedAndSaysSoOnce) {
  output_.seek(kMaxOutputBytes - 6);
  append("");
  std::filesystem::resize_file(path_, kMaxOutputBytes - 6);
  append("one\ntwothree\nfour\n");
  const std::vector<std::string> read_lines = lines(read(output_));
  EXPECT_THAT(read_lines, ElementsAre("one", "tw", HasSubstr("rank 3 wrote more than 16 MiB")));
  EXPECT_EQ(output_.offset(), kMaxOutputBytes);
  EXPECT_EQ(read(output_, true).events_size(), 0);
  append(std::string(2 << 20, 'x'));
  output_.bound_file();
  EXPECT_EQ(output_.size(), kMaxOutputBytes);
}

TEST_F(StreamTailTest, ReleasedBytesGiveTheirSpaceBack) {
  const std::string chunk(1000, 'x');
  std::string bytes;
  for (int i = 0; i < 4096; ++i) bytes += chunk + "\n";
  append(bytes);
  const auto blocks = [&] {
    struct stat info;
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    return info.st_blocks;
  };
  const auto before = blocks();
  const int64_t offset = 3001 * 1001;
  output_.release(offset);
  EXPECT_LT(blocks(), before / 2);
  output_.seek(offset);
  EXPECT_EQ(lines(read(output_))[0], chunk);
}

TEST_F(StreamTailTest, ASeekReadsAgain) {
  append(step_event(1) + step_event(2));
  const v1::EventBatch first = read(events_);
  events_.seek(0);
  EXPECT_EQ(read(events_).SerializeAsString(), first.SerializeAsString());
}

}  // namespace
}  // namespace tessera::agent
