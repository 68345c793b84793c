// Allocations and releases of a stretch of time, one by one.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "worker/memory/attribution.h"
#include "worker/memory/counts.h"

namespace tessera {

struct MemoryEvent {
  int64_t time_ns = 0;  // since the epoch, on the system's clock
  int64_t bytes = 0;    // a release: negative
  Attribution who;      // of a release: of its allocation
};

// 24 MiB of events.
inline constexpr size_t kMaxRecordedEvents = size_t{1} << 20;

struct MemoryRecording {
  int64_t begin_ns = 0;
  std::array<std::vector<MemoryCell>, kNumSpaces> at_begin;
  std::vector<MemoryEvent> events;
  int64_t num_dropped = 0;  // events after the last that had room

  void add(const Attribution& who, int64_t bytes);
};

// What a space held during a recording when it held most, by owner, block and phase; largest first.
struct RecordedPeak {
  int64_t bytes = 0;
  int64_t time_ns = 0;
  std::vector<MemoryCell> cells;
};
RecordedPeak peak_of(const MemoryRecording& recording, Space space);

// Nanoseconds since the epoch, as in MemoryEvent.
int64_t recording_clock();

}  // namespace tessera
