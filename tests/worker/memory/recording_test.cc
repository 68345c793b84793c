#include "worker/memory/recording.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "worker/memory/host_memory.h"
#include "worker/memory/ledger.h"
#include "worker/memory/timeline.h"

namespace tessera {
namespace {

// Before any tensor of the process.
MemoryLedger& ledger = MemoryLedger::install();

at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

// 100 bytes from before, 10 and 7 more, of which 10 are freed; 5 on the host.
MemoryRecording record() {
  const OwnerScope owner(Owner::kParameters);
  const at::Tensor before = bytes(100);
  ledger.start_recording();
  {
    const OwnerScope inner(Owner::kActivations);
    const PhaseScope phase(Phase::kForward);
    const BlockScope block(block_id("recording.block"));
    bytes(10);
    bytes(7);
  }
  const at::Tensor host = empty_host({5}, at::kByte, at::kCPU);
  return ledger.stop_recording();
}

TEST(Recording, KeepsEachAllocationAndRelease) {
  const MemoryRecording recording = record();
  ASSERT_EQ(recording.events.size(), 5u);
  const int64_t expected[] = {10, -10, 7, -7, 5};
  int64_t time = recording.begin_ns;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(recording.events[i].bytes, expected[i]);
    EXPECT_GE(recording.events[i].time_ns, time);
    time = recording.events[i].time_ns;
  }
  EXPECT_EQ(block_name(recording.events[1].who.block), "recording.block");
  EXPECT_EQ(recording.events[1].who.phase, Phase::kForward);
  EXPECT_EQ(recording.events[4].who.space, Space::kHost);
  EXPECT_EQ(recording.num_dropped, 0);
  EXPECT_TRUE(ledger.stop_recording().events.empty()) << "it goes on";
}

TEST(Recording, HasThePeakByOwnerBlockAndPhase) {
  const MemoryRecording recording = record();
  const RecordedPeak peak = peak_of(recording, Space::kDevice);
  EXPECT_EQ(peak.time_ns, recording.events[0].time_ns);
  EXPECT_THAT(peak.cells,
              ::testing::Contains(MemoryCell{Owner::kParameters, Phase::kLoad, 0, 100}));
  EXPECT_THAT(peak.cells, ::testing::Contains(MemoryCell{Owner::kActivations, Phase::kForward,
                                                         block_id("recording.block"), 10}));
  EXPECT_EQ(peak_of(recording, Space::kHost).bytes, 5);
}

TEST(Recording, IsBounded) {
  MemoryRecording recording;
  for (size_t i = 0; i < kMaxRecordedEvents + 3; ++i) recording.add({}, 1);
  EXPECT_EQ(recording.events.size(), kMaxRecordedEvents);
  EXPECT_EQ(recording.num_dropped, 3);
}

TEST(Timeline, HasATrackForEachOwnerOfEachSpace) {
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / "timeline_test.json";
  const MemoryRecording recording = record();
  write_timeline(recording, path);
  const nlohmann::json trace = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  const double begin_us =
      static_cast<double>(recording.begin_ns - trace["baseTimeNanoseconds"].get<int64_t>()) / 1000;
  std::map<std::string, std::vector<int64_t>> tracks;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["ph"], "C");
    EXPECT_GE(event["ts"].get<double>(), begin_us - 1);
    EXPECT_LE(event["ts"].get<double>(), begin_us + 60e6);
    tracks[event["name"]].push_back(event["args"]["bytes"]);
  }
  EXPECT_THAT(tracks["device: activations"], ::testing::ElementsAre(10, 0, 7, 0));
  EXPECT_THAT(tracks["device: parameters"], ::testing::ElementsAre(100));
  EXPECT_THAT(tracks["host: parameters"], ::testing::ElementsAre(5));
  EXPECT_EQ(trace["droppedEvents"], 0);
  const nlohmann::json& peak = trace["memoryPeaks"][0];
  EXPECT_EQ(peak["space"], "device");
  EXPECT_EQ(peak["bytes"], peak_of(recording, Space::kDevice).bytes);
  EXPECT_EQ(peak["cells"].size(), peak_of(recording, Space::kDevice).cells.size());
  EXPECT_EQ(trace["memoryPeaks"][1]["cells"][0]["owner"], "parameters");
}

TEST(Timeline, AFullDiskIsAnError) {
  EXPECT_THROW(write_timeline(record(), "/dev/full"), std::system_error);
}

}  // namespace
}  // namespace tessera
