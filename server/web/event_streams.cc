#include "server/web/event_streams.h"

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/jobs/state.h"
#include "server/web/json.h"

namespace tessera::server {
namespace {

// With the buffers of the socket, less than a mebibyte a watcher.
constexpr int64_t kMaxPageBytes = 128 << 10;
constexpr int kMaxPageEvents = 128;
// Also how soon a peer that went without a word is noticed.
constexpr std::chrono::seconds kHeartbeat{5};

}  // namespace

EventStream::Progress EventStream::advance(const Write& write) {
  absl::Status interruption;
  {
    std::lock_guard lock(streams_.mutex_);
    if (streams_.stopping_) return Progress::kEnded;
    dirty_ = false;
    interruption = interruption_;
  }
  if (!interruption.ok()) {
    write(absl::StrCat("event: refused\ndata: ", error_json(interruption), "\n\n"));
    return Progress::kEnded;
  }
  // The state first: a job seen as ended has no events that the page could miss.
  bool over = false;
  std::vector<v1::Event> page;
  streams_.reader_([&](Queries& queries) {
    over = is_terminal(queries.state(job_));
    page = queries.events(job_, next_revision_, kMaxPageEvents, kMaxPageBytes);
    return true;
  });
  for (const v1::Event& event : page) {
    if (!write(absl::StrCat("id: ", event.revision(), "\ndata: ", to_json(event), "\n\n"))) {
      return Progress::kGone;
    }
    next_revision_ = event.revision() + 1;
  }
  if (!page.empty()) return Progress::kOpen;
  if (!over) return await_news(write);
  return write("event: end\ndata: {}\n\n") ? Progress::kEnded : Progress::kGone;
}

EventStream::Progress EventStream::await_news(const Write& write) {
  {
    std::unique_lock lock(streams_.mutex_);
    const auto is_due = [this] { return dirty_ || streams_.stopping_ || !interruption_.ok(); };
    if (wake_.wait_for(lock, kHeartbeat, is_due)) return Progress::kOpen;
  }
  return write(": still here\n\n") ? Progress::kOpen : Progress::kGone;
}

void EventStream::interrupt(const absl::Status& status) {
  std::lock_guard lock(streams_.mutex_);
  interruption_ = status;
  wake_.notify_one();
}

std::shared_ptr<EventStream> EventStreams::open(int64_t job, int64_t after) {
  std::lock_guard lock(mutex_);
  if (num_open_ >= kMaxStreams) return nullptr;
  const auto release = [this](EventStream* stream) {
    remove(stream);
    delete stream;
  };
  std::shared_ptr<EventStream> stream(new EventStream(*this, job, after + 1), release);
  streams_[job].insert(stream.get());
  ++num_open_;
  return stream;
}

void EventStreams::notify(const std::vector<JobChange>& changes) {
  std::lock_guard lock(mutex_);
  for (const JobChange& change : changes) {
    const auto found = streams_.find(change.number);
    if (found == streams_.end()) continue;
    for (EventStream* stream : found->second) {
      stream->dirty_ = true;
      stream->wake_.notify_one();
    }
  }
}

void EventStreams::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const auto& [job, streams] : streams_) {
    for (EventStream* stream : streams) stream->wake_.notify_one();
  }
}

size_t EventStreams::num_open() {
  std::lock_guard lock(mutex_);
  return num_open_;
}

void EventStreams::remove(EventStream* stream) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream->job_);
  found->second.erase(stream);
  if (found->second.empty()) streams_.erase(found);
  --num_open_;
}

}  // namespace tessera::server
