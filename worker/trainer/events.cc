#include "worker/trainer/events.h"

#include <fcntl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>
#include <unistd.h>

#include <sstream>
#include <system_error>

namespace tessera {
namespace {

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

EventWriter::EventWriter(const std::filesystem::path& path) : json_(path.empty()) {
  fd_ = json_ ? STDOUT_FILENO : open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0)
    throw std::system_error(errno, std::generic_category(), "cannot open " + path.string());
}

EventWriter::~EventWriter() {
  if (!json_) close(fd_);
}

void EventWriter::write(v1::TrainerEvent event) {
  *event.mutable_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
  const std::string bytes = encoded(event, json_);
  const std::lock_guard lock(mutex_);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "cannot write an event");
    done += static_cast<size_t>(count);
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
