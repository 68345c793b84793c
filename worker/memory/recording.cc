#include "worker/memory/recording.h"

#include <chrono>

namespace tessera {

int64_t recording_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void MemoryRecording::add(const Attribution& who, int64_t bytes) {
  if (events.size() == kMaxRecordedEvents) {
    ++num_dropped;
    return;
  }
  events.push_back({recording_clock(), bytes, who});
}

RecordedPeak peak_of(const MemoryRecording& recording, Space space) {
  MemoryCounts counts;
  RecordedPeak peak{.time_ns = recording.begin_ns};
  for (const MemoryCell& cell : recording.at_begin[static_cast<size_t>(space)]) {
    counts.add({.owner = cell.owner, .phase = cell.phase, .space = space, .block = cell.block},
               cell.bytes);
  }
  peak.bytes = counts.totals().peak_bytes;
  for (const MemoryEvent& event : recording.events) {
    if (event.who.space != space) continue;
    if (event.bytes < 0) {
      counts.remove(event.who, -event.bytes);
      continue;
    }
    counts.add(event.who, event.bytes);
    if (counts.totals().peak_bytes > peak.bytes) {
      peak.bytes = counts.totals().peak_bytes;
      peak.time_ns = event.time_ns;
    }
  }
  peak.cells = counts.cells_at_peak();
  return peak;
}

}  // namespace tessera
