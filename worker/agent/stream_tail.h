// Reads what a rank appends to its event file or output file: whole events or lines, from a byte
// offset, in batches of bounded size.
#pragma once

#include <absl/status/statusor.h>
#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <filesystem>
#include <utility>

#include "tessera/v1/agent.pb.h"
#include "worker/agent/file_util.h"

namespace tessera::agent {

// A batch ends before either is passed.
inline constexpr int kMaxBatchEvents = 256;
inline constexpr int64_t kMaxBatchBytes = 1 << 20;
// Longest event; a longer one makes the file unreadable.
inline constexpr int64_t kMaxEventBytes = kMaxBatchBytes - 16;
// Bytes of a line of output that are forwarded; the rest of it is cut, and the line says so.
inline constexpr int64_t kMaxLineBytes = 8 << 10;
// Bytes of a rank's output that are forwarded, and about what its file may take on disk. A last
// line says that more was dropped.
inline constexpr int64_t kMaxOutputBytes = 16 << 20;

class StreamTail {
 public:
  StreamTail(std::filesystem::path path, v1::RankStream stream, int rank)
      : path_(std::move(path)), stream_(stream), rank_(rank) {}

  v1::RankStream stream() const { return stream_; }
  // The next byte to read.
  int64_t offset() const { return offset_; }
  // Length of the file now; 0 when there is none. Grows while the rank lives.
  int64_t size();
  // Another one after each write to the file, and each that found no room (see EventWriter).
  std::pair<int64_t, int64_t> mark();

  // The events after offset(), which moves past them; none when there is no whole one yet. With
  // `ended` the writer is gone: a last line without newline counts as whole, a torn event is
  // ignored. DATA_LOSS: the file is unreadable from offset() on.
  absl::StatusOr<v1::EventBatch> read(bool ended);

  void seek(int64_t offset) { offset_ = offset; }
  // The bytes before `offset` will not be read again: gives their disk space back.
  void release(int64_t offset);
  // Cuts an output file down to what will be read.
  void bound_file();

 private:
  using Events = google::protobuf::RepeatedPtrField<v1::TrainerEvent>;

  bool open();
  absl::StatusOr<std::string> read_bytes();
  // Both return the number of bytes that the events take.
  absl::StatusOr<int64_t> parse_events(const std::string& bytes, Events& events) const;
  int64_t parse_lines(const std::string& bytes, bool ended, Events& events) const;

  std::filesystem::path path_;
  v1::RankStream stream_;
  int rank_;
  UniqueFd fd_;
  int64_t offset_ = 0;
  int64_t released_ = 0;
};

}  // namespace tessera::agent
