#include "worker/parallel/flight_recorder.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>

namespace tessera {

void FlightRecorder::enter(const char* phase, int step) {
  if (std::this_thread::get_id() != owner_) return;
  phase_.store(phase, std::memory_order_relaxed);
  step_.store(step, std::memory_order_relaxed);
}

int64_t FlightRecorder::issue(const char* group, int64_t sequence, const char* kind,
                              int64_t bytes) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  const int64_t number = ++num_issued_;
  at(number) = {.group = group,
                .kind = kind,
                .number = number,
                .sequence = sequence,
                .bytes = bytes,
                .begin = now};
  return number;
}

void FlightRecorder::wait(int64_t number) {
  const std::lock_guard lock(mutex_);
  if (Entry& entry = at(number); entry.number == number) entry.is_waited_for = true;
}

void FlightRecorder::finish(int64_t number) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  Entry& entry = at(number);
  if (entry.number != number) return;
  entry.done = true;
  entry.is_waited_for = false;
  entry.end = now;
}

v1::CollectiveRecord FlightRecorder::record() const {
  using google::protobuf::util::TimeUtil;
  v1::CollectiveRecord record;
  record.set_phase(phase_.load(std::memory_order_relaxed));
  record.set_step(step_.load(std::memory_order_relaxed));
  // TimeUtil::GetCurrentTime() knows whole seconds only.
  const google::protobuf::Timestamp time = TimeUtil::NanosecondsToTimestamp(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex_);
  record.set_num_issued(num_issued_);
  for (int64_t number = std::max<int64_t>(1, num_issued_ - kMaxKept + 1); number <= num_issued_;
       ++number) {
    const Entry& entry = entries_[static_cast<size_t>(number % kMaxKept)];
    v1::Collective& told = *record.add_collectives();
    told.set_group(entry.group);
    told.set_sequence(entry.sequence);
    told.set_kind(entry.kind);
    told.set_bytes(entry.bytes);
    const auto age = std::chrono::duration_cast<std::chrono::nanoseconds>(now - entry.begin);
    *told.mutable_issue_time() = time - TimeUtil::NanosecondsToDuration(age.count());
    const auto length = (entry.done ? entry.end : now) - entry.begin;
    told.set_seconds(std::chrono::duration<double>(length).count());
    told.set_done(entry.done);
    told.set_is_waited_for(entry.is_waited_for);
  }
  return record;
}

}  // namespace tessera
