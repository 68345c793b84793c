#include "server/rpc/watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/errors.h"
#include "server/jobs/state.h"
#include "server/rpc/status.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxWatchers = 1024;
// A watcher that does not read holds a page, and what gRPC has taken of it: less than a mebibyte.
constexpr int kMaxPageEvents = 128;
constexpr int64_t kMaxPageBytes = 128 << 10;

absl::Status going_away() {
  return error(absl::StatusCode::kUnavailable, "SHUTTING_DOWN", "tesserad is shutting down");
}

// A call that ends before its first message.
class Refusal final : public WatchHub::Reactor {
 public:
  explicit Refusal(const absl::Status& status) { Finish(to_grpc(status)); }
  void OnDone() override { delete this; }
};

// Then no more of the job was there.
bool is_less_than_page(const std::vector<v1::Event>& events) {
  int64_t bytes = 0;
  for (const v1::Event& event : events) bytes += static_cast<int64_t>(event.ByteSizeLong());
  return static_cast<int>(events.size()) < kMaxPageEvents && bytes < kMaxPageBytes;
}

}  // namespace

// All events that a job got by one commit, less than a page of them.
struct WatchNews {
  int64_t previous_revision;  // the job's before
  bool is_last;               // it has ended
  std::vector<v1::Event> events;
};

// One call. Between its steps it is in exactly one place: a write is under way, it is in the hub's
// queue for its next page, or it is idle until the next commit.
//
// Whether events follow those that it has is told by revisions alone, not by who told it of which
// commit: one that failed may be on the disk all the same, and then nobody was told.
class Watcher final : public WatchHub::Reactor,
                      public OpenCall,
                      public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(WatchHub& hub, int64_t job, const v1::WatchJobRequest& request)
      : hub_(hub),
        job_(job),
        no_follow_(request.no_follow()),
        begin_(hub.clock_.uptime()),
        next_revision_(request.start_revision()) {}

  int64_t job() const { return job_; }

  // From here on gRPC owns a share, until OnDone.
  void start() {
    self_ = shared_from_this();
    hub_.enqueue({self_, nullptr});
  }

  // Both are called by the hub's thread alone.
  void next_page(Reader& reader) {
    if (ended()) return;
    {
      std::lock_guard lock(mutex_);
      dirty_ = false;
    }
    // The state first: a job seen as ended has no events that the page could miss.
    bool over = no_follow_;
    reader([&](Queries& queries) {
      over = over || is_terminal(queries.state(job_));
      page_ = queries.events(job_, next_revision_, kMaxPageEvents, kMaxPageBytes);
      return true;
    });
    begin_page(!is_less_than_page(page_) ? Then::kRead : over ? Then::kEnd : Then::kWait);
  }

  void take(const WatchNews& news, Reader& reader) {
    if (news.previous_revision >= next_revision_) return next_page(reader);
    if (ended()) return;
    page_.clear();
    for (const v1::Event& event : news.events) {
      if (event.revision() >= next_revision_) page_.push_back(event);
    }
    begin_page(news.is_last ? Then::kEnd : Then::kWait);
  }

  // Whether its next turn has come; it is in the queue then. News that it is given are not to be
  // read again.
  bool notify(bool gets_news) {
    std::lock_guard lock(mutex_);
    dirty_ = !idle_ || !gets_news;
    return std::exchange(idle_, false);
  }

  // Ends the call at its next step, at once if it is idle.
  void interrupt(const absl::Status& status) override {
    std::unique_lock lock(mutex_);
    interruption_ = status;
    if (!std::exchange(idle_, false)) return;
    lock.unlock();
    end(status);
  }

  void end(const absl::Status& status) {
    status_ = to_grpc(status);
    Finish(status_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return end(absl::CancelledError("the client is gone"));
    if (ended()) return;
    go_on();
  }

  void OnCancel() override { interrupt(absl::CancelledError("the client is gone")); }

  void OnDone() override {
    hub_.metrics_.record("WatchJob", status_.error_code(), hub_.clock_.uptime() - begin_);
    hub_.remove(self_);
    self_.reset();
  }

 private:
  // After the page: more may be stored, no more comes, or the next commit may bring more.
  enum class Then { kRead, kEnd, kWait };

  void begin_page(Then then) {
    position_ = 0;
    then_ = then;
    if (!page_.empty()) next_revision_ = page_.back().revision() + 1;
    go_on();
  }

  void go_on() {
    if (position_ < page_.size()) return write();
    switch (then_) {
      case Then::kRead:
        return hub_.enqueue({shared_from_this(), nullptr});
      case Then::kEnd:
        return end(absl::OkStatus());
      case Then::kWait:
        return wait();
    }
  }

  // Whether an interruption was due; the call has ended then.
  bool ended() {
    absl::Status status;
    {
      std::lock_guard lock(mutex_);
      status = interruption_;
    }
    if (!status.ok()) end(status);
    return !status.ok();
  }

  void write() {
    *response_.mutable_event() = std::move(page_[position_++]);
    StartWrite(&response_);
  }

  void wait() {
    std::unique_lock lock(mutex_);
    if (interruption_.ok() && !dirty_) {
      idle_ = true;
      return;
    }
    lock.unlock();
    hub_.enqueue({shared_from_this(), nullptr});
  }

  WatchHub& hub_;
  const int64_t job_;
  const bool no_follow_;
  const absl::Duration begin_;
  std::shared_ptr<Watcher> self_;
  grpc::Status status_;

  // Of whoever has the current step.
  int64_t next_revision_;
  std::vector<v1::Event> page_;
  size_t position_ = 0;
  Then then_ = Then::kRead;
  v1::WatchJobResponse response_;

  std::mutex mutex_;
  // Guarded by mutex_.
  bool dirty_ = false;
  bool idle_ = false;
  absl::Status interruption_;
};

WatchHub::WatchHub(Reader& reader, const Clock& clock, RpcMetrics& metrics)
    : reader_(reader), clock_(clock), metrics_(metrics), thread_([this] { run(); }) {}

WatchHub::Reactor* WatchHub::watch(const v1::WatchJobRequest& request,
                                   const std::function<void(std::weak_ptr<OpenCall>)>& opened) {
  const auto refuse = [this](const absl::Status& status) {
    metrics_.record("WatchJob", static_cast<grpc::StatusCode>(status.code()), absl::ZeroDuration());
    return new Refusal(status);
  };
  absl::StatusOr<JobRecord> record;
  try {
    record = reader_([&](Queries& queries) { return queries.find(request.id()); });
  } catch (const DatabaseError& failure) {
    record = to_status(failure);
  }
  if (!record.ok()) return refuse(record.status());
  auto watcher = std::make_shared<Watcher>(*this, record->number(), request);
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return refuse(going_away());
    if (num_watchers_ >= kMaxWatchers) {
      return refuse(error(absl::StatusCode::kResourceExhausted, "TOO_MANY_WATCHERS",
                          absl::StrCat("the coordinator serves ", kMaxWatchers,
                                       " watchers at a time; try again later")));
    }
    watchers_[record->number()].insert(watcher);
    ++num_watchers_;
  }
  watcher->start();
  opened(watcher);
  return watcher.get();
}

void WatchHub::notify(const std::vector<JobChange>& changes) {
  std::lock_guard lock(mutex_);
  for (const JobChange& change : changes) {
    const auto found = watchers_.find(change.number);
    if (found == watchers_.end() || change.events.empty()) continue;
    std::shared_ptr<const WatchNews> news;
    if (is_less_than_page(change.events)) {
      news = std::make_shared<WatchNews>(
          WatchNews{change.previous_revision, is_terminal(change.job.state()), change.events});
    }
    for (const auto& watcher : found->second) {
      if (watcher->notify(news != nullptr)) queue_.push_back({watcher, news});
    }
  }
  wake_.notify_one();
}

void WatchHub::stop() {
  std::vector<std::shared_ptr<Watcher>> all;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& [job, watchers] : watchers_) {
      all.insert(all.end(), watchers.begin(), watchers.end());
    }
  }
  for (const auto& watcher : all) watcher->interrupt(going_away());
  // The thread serves those that are between two steps until the last one is gone.
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void WatchHub::enqueue(Turn turn) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(turn));
  wake_.notify_one();
}

void WatchHub::remove(const std::shared_ptr<Watcher>& watcher) {
  std::lock_guard lock(mutex_);
  const auto found = watchers_.find(watcher->job());
  found->second.erase(watcher);
  if (found->second.empty()) watchers_.erase(found);
  --num_watchers_;
  wake_.notify_one();
}

void WatchHub::run() {
  while (true) {
    Turn turn;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return !queue_.empty() || (stopping_ && num_watchers_ == 0); });
      if (queue_.empty()) return;
      turn = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      if (turn.news != nullptr) {
        turn.watcher->take(*turn.news, reader_);
      } else {
        turn.watcher->next_page(reader_);
      }
    } catch (const DatabaseError& failure) {
      turn.watcher->end(to_status(failure));
    }
  }
}

}  // namespace tessera::server
