#include "worker/trainer/events.h"

#include <fcntl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sstream>
#include <system_error>

namespace tessera {
namespace {

constexpr int kFlushIntervalMs = 100;

std::string encoded(const v1::TrainerEvent& event, bool json) {
  std::string bytes;
  if (json) {
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = true;
    const auto status = google::protobuf::util::MessageToJsonString(event, &bytes, options);
    if (!status.ok()) throw std::logic_error("an event has no JSON form: " + status.ToString());
    bytes += '\n';
    return bytes;
  }
  std::ostringstream stream;
  google::protobuf::util::SerializeDelimitedToOstream(event, &stream);
  return std::move(stream).str();
}

}  // namespace

google::protobuf::Timestamp timestamp_now() {
  // TimeUtil::GetCurrentTime() knows whole seconds only.
  return google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::system_clock::now().time_since_epoch())
          .count());
}

EventWriter::EventWriter(const std::filesystem::path& path) : json_(path.empty()) {
  fd_ = json_ ? STDOUT_FILENO : open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0)
    throw std::system_error(errno, std::generic_category(), "cannot open " + path.string());
}

EventWriter::~EventWriter() {
  if (!json_) close(fd_);
}

void EventWriter::write(v1::TrainerEvent event) {
  if (!event.has_time()) *event.mutable_time() = timestamp_now();
  const std::string bytes = encoded(event, json_);
  const std::lock_guard lock(mutex_);
  waiting_ += bytes;
  write_waiting();
  if (waiting_.size() <= kMaxWaitingBytes) return;
  // Not ENOSPC, which would be the output directory's.
  throw std::system_error(EIO, std::generic_category(),
                          "the disk of the events is full, and more of them wait than may");
}

void EventWriter::write_waiting() {
  size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t count = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    done += static_cast<size_t>(count);
  }
  const int why = errno;
  waiting_.erase(0, done);
  if (waiting_.empty()) return;
  if (why != ENOSPC && why != EDQUOT) {
    throw std::system_error(why, std::generic_category(), "cannot write an event");
  }
  futimens(fd_, nullptr);
}

void EventWriter::flush(std::chrono::seconds patience) {
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      write_waiting();
      if (waiting_.empty()) return;
    }
    if (std::chrono::steady_clock::now() > give_up) {
      throw std::system_error(EIO, std::generic_category(),
                              "the disk of the events is full: the last of them cannot be written");
    }
    poll(nullptr, 0, kFlushIntervalMs);
  }
}

void EventWriter::progress(const char* phase, int step) {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (now - last_progress_ < std::chrono::seconds(1)) return;
    last_progress_ = now;
  }
  v1::TrainerEvent event;
  event.mutable_progress()->set_phase(phase);
  event.mutable_progress()->set_step(step);
  write(std::move(event));
}

void EventWriter::log(v1::LogLine::Severity severity, int rank, const std::string& text) {
  v1::TrainerEvent event;
  event.mutable_log()->set_severity(severity);
  event.mutable_log()->set_rank(rank);
  event.mutable_log()->set_text(text);
  write(std::move(event));
}

}  // namespace tessera
