// A recording of memory as a Chrome trace: chrome://tracing and Perfetto show a counter track for
// each owner of each space.
#pragma once

#include <filesystem>

#include "worker/memory/recording.h"

namespace tessera {

// Times are microseconds since the file's "baseTimeNanoseconds", which is that of LibTorch's
// profiler: the two lie over each other. Beside the tracks the file has, under "memoryPeaks", what
// each space held when it held most, by owner, block and phase. Throws std::system_error.
void write_timeline(const MemoryRecording& recording, const std::filesystem::path& path);

}  // namespace tessera
