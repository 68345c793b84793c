#include "worker/memory/timeline.h"

#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Microseconds since the epoch need more digits than a double has. The profiler's traces count from
// a multiple of its three months; so do these, so that both lie over each other.
constexpr int64_t kThreeMonthsNs = int64_t{7'889'238} * 1'000'000'000;

// "1234.567", exactly.
struct Microseconds {
  explicit Microseconds(int64_t ns) {
    std::snprintf(text, sizeof text, "%" PRId64 ".%03d", ns / 1000, static_cast<int>(ns % 1000));
  }
  char text[32];
};

class TraceFile {
 public:
  explicit TraceFile(const fs::path& path) : path_(path), file_(std::fopen(path.c_str(), "we")) {
    check(file_ != nullptr);
  }

  // Like printf; no text here needs escapes: names of blocks are those of the model's modules.
  template <typename... Args>
  void print(const char* format, Args... args) {
    check(std::fprintf(file_.get(), format, args...) >= 0);
  }
  void close() { check(std::fclose(file_.release()) == 0); }

 private:
  struct Close {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  void check(bool good) const {
    if (!good) throw std::system_error(errno, std::generic_category(), path_.string());
  }

  fs::path path_;
  std::unique_ptr<FILE, Close> file_;
};

// Writes one sample of a track: its bytes from now on.
class Tracks {
 public:
  Tracks(TraceFile& file, int64_t begin_ns, int64_t base_ns)
      : file_(file), begin_ns_(begin_ns), base_ns_(base_ns) {}

  void begin(Space space, const std::vector<MemoryCell>& cells) {
    for (const MemoryCell& cell : cells) bytes_[index(space, cell.owner)] += cell.bytes;
    for (int owner = 0; owner < kNumOwners; ++owner) {
      if (bytes_[index(space, static_cast<Owner>(owner))] != 0) {
        sample(space, static_cast<Owner>(owner), begin_ns_);
      }
    }
  }
  void add(const MemoryEvent& event) {
    bytes_[index(event.who.space, event.who.owner)] += event.bytes;
    sample(event.who.space, event.who.owner, event.time_ns);
  }

 private:
  static size_t index(Space space, Owner owner) {
    return static_cast<size_t>(space) * kNumOwners + static_cast<size_t>(owner);
  }
  void sample(Space space, Owner owner, int64_t time_ns) {
    file_.print(
        "%s{\"ph\":\"C\",\"pid\":%d,\"ts\":%s,\"name\":\"%s: %s\","
        "\"args\":{\"bytes\":%" PRId64 "}}",
        first_ ? "" : ",\n", ::getpid(), Microseconds(time_ns - base_ns_).text,
        space_name(space).data(), owner_name(owner).data(), bytes_[index(space, owner)]);
    first_ = false;
  }

  TraceFile& file_;
  const int64_t begin_ns_, base_ns_;
  int64_t bytes_[kNumSpaces * kNumOwners]{};
  bool first_ = true;
};

void write_peak(const RecordedPeak& peak, Space space, int64_t base_ns, TraceFile& file) {
  file.print("{\"space\":\"%s\",\"bytes\":%" PRId64 ",\"ts\":%s,\"cells\":[",
             space_name(space).data(), peak.bytes, Microseconds(peak.time_ns - base_ns).text);
  const char* separator = "\n";
  for (const MemoryCell& cell : peak.cells) {
    file.print("%s{\"owner\":\"%s\",\"block\":\"%s\",\"phase\":\"%s\",\"bytes\":%" PRId64 "}",
               separator, owner_name(cell.owner).data(), block_name(cell.block).c_str(),
               phase_name(cell.phase).data(), cell.bytes);
    separator = ",\n";
  }
  file.print("]}");
}

}  // namespace

void write_timeline(const MemoryRecording& recording, const fs::path& path) {
  TraceFile file(path);
  const int64_t base_ns = recording.begin_ns / kThreeMonthsNs * kThreeMonthsNs;
  file.print("{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":%" PRId64 ",\"traceEvents\":[\n",
             base_ns);
  Tracks tracks(file, recording.begin_ns, base_ns);
  for (int space = 0; space < kNumSpaces; ++space) {
    tracks.begin(static_cast<Space>(space), recording.at_begin[space]);
  }
  for (const MemoryEvent& event : recording.events) tracks.add(event);
  file.print("],\n\"droppedEvents\":%" PRId64 ",\n\"memoryPeaks\":[\n", recording.num_dropped);
  write_peak(peak_of(recording, Space::kDevice), Space::kDevice, base_ns, file);
  file.print(",\n");
  write_peak(peak_of(recording, Space::kHost), Space::kHost, base_ns, file);
  file.print("]}\n");
  file.close();
}

}  // namespace tessera
