// What a rank reports: TrainerEvents, appended to a file or printed.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>

#include "tessera/v1/trainer.pb.h"

namespace tessera {

// Thread safe. An event is written whole by one write(2), so that a reader sees at most one torn
// event, the last.
class EventWriter {
 public:
  // Appends varint-delimited messages to `path`; empty: prints one ProtoJSON message a line on
  // stdout. Throws std::system_error when the file cannot be opened.
  explicit EventWriter(const std::filesystem::path& path);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Sets the time and writes. Throws std::system_error when the write fails.
  void write(v1::TrainerEvent event);
  // A Progress event, unless one was written within the last second.
  void progress(const char* phase, int step);
  void log(v1::LogLine::Severity severity, int rank, const std::string& text);

 private:
  std::mutex mutex_;
  int fd_;
  bool json_;
  std::chrono::steady_clock::time_point last_progress_{};
};

}  // namespace tessera
