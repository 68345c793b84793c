#include "worker/trainer/control.h"

#include <fcntl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "worker/parallel/collectives.h"

namespace tessera {
namespace {

// Between two steps.
constexpr size_t kMaxPendingTraces = 64;

}  // namespace

CommandReader::CommandReader(const std::filesystem::path& path, std::function<void()> record)
    : record_(std::move(record)) {
  if (path.empty()) return;
  // Opened for writing too, so that an agent's end closing is no end of file.
  fd_ = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd_ < 0)
    throw std::system_error(errno, std::generic_category(), "cannot open " + path.string());
  wake_fd_ = eventfd(0, EFD_CLOEXEC);
  if (wake_fd_ < 0) {
    const int error = errno;
    close(fd_);
    throw std::system_error(error, std::generic_category(), "cannot make an eventfd");
  }
  thread_ = std::thread([this] { listen(); });
}

CommandReader::~CommandReader() {
  if (fd_ < 0) return;
  eventfd_write(wake_fd_, 1);
  thread_.join();
  close(wake_fd_);
  close(fd_);
}

void CommandReader::listen() {
  pollfd watched[] = {{.fd = fd_, .events = POLLIN}, {.fd = wake_fd_, .events = POLLIN}};
  while (true) {
    if (poll(watched, 2, -1) < 0 && errno != EINTR) return;
    if ((watched[1].revents & POLLIN) != 0) return;
    for (int asked = read_commands(); asked > 0; --asked) record_();
  }
}

CommandReader::Pending CommandReader::take() {
  if (fd_ < 0) return {};
  for (int asked = read_commands(); asked > 0; --asked) record_();
  const std::lock_guard lock(mutex_);
  return std::exchange(pending_, {});
}

int CommandReader::read_commands() {
  const std::lock_guard lock(mutex_);
  char bytes[4096];
  for (ssize_t count; (count = read(fd_, bytes, sizeof bytes)) > 0;) {
    buffer_.append(bytes, static_cast<size_t>(count));
  }
  google::protobuf::io::ArrayInputStream stream(buffer_.data(), static_cast<int>(buffer_.size()));
  int64_t consumed = 0;
  int asked = 0;
  v1::TrainerCommand command;
  bool clean_eof = false;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&command, &stream, &clean_eof)) {
    consumed = stream.ByteCount();
    if (command.has_stop()) {
      pending_.stop = true;
      pending_.save_checkpoint |= command.stop().save_checkpoint();
    }
    pending_.save_checkpoint |= command.has_save_checkpoint();
    if (command.has_trace_steps() && pending_.traces.size() < kMaxPendingTraces)
      pending_.traces.push_back(command.trace_steps());
    if (command.has_record_collectives()) ++asked;
    command.Clear();
  }
  buffer_.erase(0, static_cast<size_t>(consumed));
  return asked;
}

void Lease::check() const {
  if (path_.empty()) return;
  struct stat status;
  if (stat(path_.c_str(), &status) != 0) {
    throw NetworkError("the run directory is gone: the job runs elsewhere or was cancelled");
  }
  using namespace std::chrono;
  const auto renewed = seconds(status.st_mtim.tv_sec) + nanoseconds(status.st_mtim.tv_nsec);
  const auto age = now_().time_since_epoch() - renewed;
  if (age < nanoseconds::zero()) {
    throw NetworkError("the lease is of another clock than that of this machine since it started");
  }
  if (duration_cast<milliseconds>(age).count() > fence_ms_) {
    throw NetworkError("the lease ran out: the coordinator was not reached for " +
                       std::to_string(fence_ms_ / 1000) + " s");
  }
}

LeaseWatch::LeaseWatch(Lease lease, std::function<void(const std::string& why)> expired)
    : lease_(std::move(lease)),
      expired_(std::move(expired)),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void LeaseWatch::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  try {
    while (!stop.stop_requested()) {
      lease_.check();
      wake_.wait_for(lock, stop, kPeriod, [] { return false; });
    }
  } catch (const NetworkError& why) {
    expired_(why.what());
  }
}

}  // namespace tessera
