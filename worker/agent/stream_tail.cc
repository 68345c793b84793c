#include "worker/agent/stream_tail.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/util/time_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "worker/agent/utf8.h"

namespace tessera::agent {
namespace {

// Disk space is given back in pieces of at least this.
constexpr int64_t kReleaseBytes = 1 << 20;
constexpr int64_t kMaxVarintBytes = 10;

v1::TrainerEvent log_event(int rank, v1::LogLine::Severity severity, std::string text) {
  v1::TrainerEvent event;
  // TimeUtil::GetCurrentTime() knows whole seconds only.
  *event.mutable_time() =
      google::protobuf::util::TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(absl::Now()));
  event.mutable_log()->set_severity(severity);
  event.mutable_log()->set_rank(rank);
  event.mutable_log()->set_text(std::move(text));
  return event;
}

std::string forwarded_text(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (static_cast<int64_t>(line.size()) <= kMaxLineBytes) return to_valid_utf8(line);
  return absl::StrCat(to_valid_utf8(line.substr(0, kMaxLineBytes)), " [cut: the line has ",
                      line.size(), " bytes]");
}

}  // namespace

bool StreamTail::open() {
  if (!fd_.valid()) fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  return fd_.valid();
}

int64_t StreamTail::size() {
  struct stat info;
  if (!open() || ::fstat(fd_.get(), &info) != 0) return 0;
  return info.st_size;
}

std::pair<int64_t, int64_t> StreamTail::mark() {
  struct stat info;
  if (!open() || ::fstat(fd_.get(), &info) != 0) return {0, 0};
  return {info.st_size, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec};
}

absl::StatusOr<v1::EventBatch> StreamTail::read(bool ended) {
  v1::EventBatch batch;
  batch.set_rank(rank_);
  batch.set_stream(stream_);
  batch.set_begin_offset(offset_);
  absl::StatusOr<std::string> bytes = read_bytes();
  if (!bytes.ok()) return bytes.status();
  if (stream_ == v1::RANK_STREAM_EVENTS) {
    absl::StatusOr<int64_t> taken = parse_events(*bytes, *batch.mutable_events());
    if (!taken.ok()) return taken.status();
    offset_ += *taken;
  } else {
    offset_ += parse_lines(*bytes, ended, *batch.mutable_events());
  }
  batch.set_end_offset(offset_);
  return batch;
}

absl::StatusOr<std::string> StreamTail::read_bytes() {
  const bool bounded = stream_ == v1::RANK_STREAM_OUTPUT;
  const int64_t end = bounded ? std::min(size(), kMaxOutputBytes) : size();
  std::string bytes(static_cast<size_t>(std::clamp<int64_t>(end - offset_, 0, kMaxBatchBytes)), 0);
  if (bytes.empty()) return bytes;
  const ssize_t count = ::pread(fd_.get(), bytes.data(), bytes.size(), offset_);
  if (count < 0) return errno_status(absl::StrCat("read ", path_.string()));
  bytes.resize(static_cast<size_t>(count));
  return bytes;
}

absl::StatusOr<int64_t> StreamTail::parse_events(const std::string& bytes, Events& events) const {
  int64_t taken = 0;
  const auto unreadable = [&]() -> absl::StatusOr<int64_t> {
    // The good events first; the next read meets the bad one again.
    if (taken > 0) return taken;
    return absl::DataLossError(absl::StrCat("event file is unreadable at byte ", offset_));
  };
  while (events.size() < kMaxBatchEvents) {
    const int64_t left = static_cast<int64_t>(bytes.size()) - taken;
    google::protobuf::io::CodedInputStream input(
        reinterpret_cast<const uint8_t*>(bytes.data()) + taken, static_cast<int>(left));
    uint64_t length = 0;
    if (!input.ReadVarint64(&length)) return left < kMaxVarintBytes ? taken : unreadable();
    if (length > static_cast<uint64_t>(kMaxEventBytes)) return unreadable();
    const int64_t header = input.CurrentPosition();
    const int size = static_cast<int>(length);
    if (header + size > left) return taken;
    v1::TrainerEvent event;
    if (!event.ParseFromArray(bytes.data() + taken + header, size)) return unreadable();
    *events.Add() = std::move(event);
    taken += header + size;
  }
  return taken;
}

int64_t StreamTail::parse_lines(const std::string& bytes, bool ended, Events& events) const {
  const std::string_view text = bytes;
  const int64_t bytes_end = offset_ + static_cast<int64_t>(bytes.size());
  size_t taken = 0;
  while (events.size() < kMaxBatchEvents && taken < text.size()) {
    size_t end = text.find('\n', taken);
    const bool whole = end != std::string_view::npos;
    if (!whole) {
      end = text.size();
      // Wait for the rest of the line, unless there is none, or it would not fit anyway.
      const bool full = static_cast<int64_t>(text.size()) == kMaxBatchBytes;
      const bool at_bound = bytes_end == kMaxOutputBytes;
      if (!at_bound && !(full && taken == 0) && !(ended && !full)) break;
    }
    *events.Add() =
        log_event(rank_, v1::LogLine::OUTPUT, forwarded_text(text.substr(taken, end - taken)));
    taken = whole ? end + 1 : end;
  }
  if (taken > 0 && offset_ + static_cast<int64_t>(taken) == kMaxOutputBytes) {
    *events.Add() =
        log_event(rank_, v1::LogLine::WARNING,
                  absl::StrCat("rank ", rank_, " wrote more than ", kMaxOutputBytes >> 20,
                               " MiB to its standard output and error: what follows is dropped"));
  }
  return static_cast<int64_t>(taken);
}

void StreamTail::release(int64_t offset) {
  if (offset - released_ < kReleaseBytes || !open()) return;
  // Not every file system can; then the space comes back with the run's directory.
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, released_, offset - released_);
  released_ = offset;
}

void StreamTail::bound_file() {
  if (stream_ != v1::RANK_STREAM_OUTPUT || size() < kMaxOutputBytes + kReleaseBytes) return;
  [[maybe_unused]] const int result = ::ftruncate(fd_.get(), kMaxOutputBytes);
}

}  // namespace tessera::agent
