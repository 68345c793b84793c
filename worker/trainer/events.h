// What a rank reports: TrainerEvents, appended to a file or printed.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>

#include "tessera/v1/trainer.pb.h"

namespace tessera {

// As events have it.
google::protobuf::Timestamp timestamp_now();

// Thread safe. An event is written whole by one write(2), so that a reader sees at most one torn
// event, the last.
//
// Training does not end because its events do not fit: on a full disk they wait here, in their
// order, and are written with the first one that finds room. The file's time is set meanwhile, so
// that the agent sees that the rank lives.
class EventWriter {
 public:
  // Bytes of events that may wait.
  static constexpr size_t kMaxWaitingBytes = 8 << 20;
  // How long flush() waits for room.
  static constexpr std::chrono::seconds kPatience{60};

  // Appends varint-delimited messages to `path`; empty: prints one ProtoJSON message a line on
  // stdout. Throws std::system_error when the file cannot be opened.
  explicit EventWriter(const std::filesystem::path& path);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Sets the time where there is none, and writes, or lets it wait. Throws std::system_error when
  // the write fails, and where too much waits.
  void write(v1::TrainerEvent event);
  // Until nothing waits: to be called after the last event. Throws std::system_error like write(),
  // and when there is no room for that long.
  void flush(std::chrono::seconds patience = kPatience);
  // A Progress event, unless one was written within the last second.
  void progress(const char* phase, int step);
  void log(v1::LogLine::Severity severity, int rank, const std::string& text);

 private:
  // Writes what waits as far as it goes; requires the lock.
  void write_waiting();

  std::mutex mutex_;
  std::string waiting_;  // guarded by mutex_; may begin amid an event
  int fd_;
  bool json_;
  std::chrono::steady_clock::time_point last_progress_{};
};

}  // namespace tessera
