#include "server/scheduler/job_queue.h"

#include <algorithm>
#include <tuple>

namespace tessera::server {

const Shape* JobQueue::intern(const QueuedJob& job) {
  const auto found = shapes_.try_emplace(Shape{job.kind, job.model, job.sizes, job.longest}, 0);
  ++found.first->second;
  return &found.first->first;
}

void JobQueue::release(const Shape* shape) {
  const auto found = shapes_.find(*shape);
  if (--found->second == 0) shapes_.erase(found);
}

void JobQueue::put(const QueuedJob& job, absl::Duration now) {
  remove(job.number);
  Entry& entry = entries_[job.number];
  entry = {job, intern(job), job.not_before > now};
  if (entry.delayed) {
    delayed_.insert({job.not_before, job.number});
  } else {
    link(entry);
  }
}

void JobQueue::remove(int64_t number) {
  const auto found = entries_.find(number);
  if (found == entries_.end()) return;
  const Entry& entry = found->second;
  if (entry.delayed) {
    delayed_.erase({entry.job.not_before, number});
  } else {
    unlink(entry);
  }
  release(entry.shape);
  entries_.erase(found);
}

const JobQueue::Entry* JobQueue::find(int64_t number) const {
  const auto found = entries_.find(number);
  return found == entries_.end() ? nullptr : &found->second;
}

void JobQueue::wake(absl::Duration now) {
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    Entry& entry = entries_.at(delayed_.begin()->second);
    delayed_.erase(delayed_.begin());
    entry.delayed = false;
    link(entry);
  }
}

void JobQueue::link(const Entry& entry) {
  const int64_t number = entry.job.number;
  Lane& lane = kinds_[entry.job.kind][entry.job.priority][entry.job.project];
  std::set<int64_t>& same = lane.by_shape[entry.shape];
  if (!same.empty()) lane.heads.erase({*same.begin(), entry.shape});
  same.insert(number);
  lane.heads.insert({*same.begin(), entry.shape});
  lane.all.insert(number);
}

void JobQueue::unlink(const Entry& entry) {
  const int64_t number = entry.job.number;
  const auto kind = kinds_.find(entry.job.kind);
  const auto level = kind->second.find(entry.job.priority);
  const auto lane = level->second.find(entry.job.project);
  const auto same = lane->second.by_shape.find(entry.shape);
  lane->second.heads.erase({*same->second.begin(), entry.shape});
  same->second.erase(number);
  lane->second.all.erase(number);
  if (!same->second.empty()) {
    lane->second.heads.insert({*same->second.begin(), entry.shape});
  } else {
    lane->second.by_shape.erase(same);
  }
}

std::vector<std::string> JobQueue::kinds() const {
  std::vector<std::string> names;
  for (const auto& [name, levels] : kinds_) names.push_back(name);
  return names;
}

bool JobQueue::empty(const std::string& kind) const {
  const auto found = kinds_.find(kind);
  if (found == kinds_.end()) return true;
  for (const auto& [priority, level] : found->second) {
    for (const auto& [project, lane] : level) {
      if (!lane.all.empty()) return false;
    }
  }
  return true;
}

std::vector<int64_t> JobQueue::order(const Score& score, size_t limit) const {
  // By priority, score and the first that is left of each lane, whatever the kind.
  struct Place {
    int priority;
    double score;
    std::set<int64_t>::const_iterator next, end;
    bool operator>(const Place& other) const {
      return std::tuple(-priority, score, *next) >
             std::tuple(-other.priority, other.score, *other.next);
    }
  };
  std::vector<Place> heap;
  for (const auto& [kind, levels] : kinds_) {
    for (const auto& [priority, level] : levels) {
      for (const auto& [project, lane] : level) {
        if (lane.all.empty()) continue;
        heap.push_back({priority, score(project), lane.all.begin(), lane.all.end()});
      }
    }
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  std::vector<int64_t> numbers;
  while (!heap.empty() && numbers.size() < limit) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    Place& place = heap.back();
    numbers.push_back(*place.next++);
    if (place.next == place.end) {
      heap.pop_back();
    } else {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  for (const auto& [time, number] : delayed_) {
    if (numbers.size() >= limit) break;
    numbers.push_back(number);
  }
  return numbers;
}

JobQueue::Walk::Walk(const JobQueue& queue, const std::string& kind, Score score)
    : queue_(queue), score_(std::move(score)) {
  const auto levels = queue_.kinds_.find(kind);
  if (levels == queue_.kinds_.end()) return;
  levels_ = &levels->second;
  level_ = levels_->begin();
  if (level_ != levels_->end()) open_level();
}

void JobQueue::Walk::open_level() {
  for (const auto& [project, lane] : level_->second) {
    push(Cursor{0, {}, &project, &lane, {}, {}}, {0, nullptr});
  }
}

// With the first head behind `after` that was not passed over.
void JobQueue::Walk::push(Cursor cursor, const std::pair<int64_t, const Shape*>& after) {
  auto head = cursor.lane->heads.upper_bound(after);
  while (head != cursor.lane->heads.end() && cursor.passed.contains(head->second)) ++head;
  const auto behind = cursor.behind_skipped.begin();
  const bool has_head = head != cursor.lane->heads.end();
  const bool has_behind = behind != cursor.behind_skipped.end();
  if (!has_head && !has_behind) return;
  cursor.is_behind_skipped = has_behind && (!has_head || *behind < *head);
  cursor.head = cursor.is_behind_skipped ? *behind : *head;
  if (cursor.is_behind_skipped) cursor.behind_skipped.erase(behind);
  cursor.score = score_(*cursor.project);
  heap_.push_back(std::move(cursor));
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void JobQueue::Walk::leave_last() {
  Cursor cursor = std::move(last_.back());
  last_.pop_back();
  const bool stays = std::exchange(last_stays_, false);
  const auto [number, shape] = cursor.head;
  if (std::exchange(passed_over_, false)) {
    cursor.passed.insert(shape);
  } else if (stays || cursor.is_behind_skipped) {
    // The lane's own head of the shape is one that was skipped.
    const auto same = cursor.lane->by_shape.find(shape);
    if (same != cursor.lane->by_shape.end()) {
      const auto next = same->second.upper_bound(number);
      if (next != same->second.end()) cursor.behind_skipped.insert({*next, shape});
    }
  }
  const auto after = cursor.head;
  push(std::move(cursor), after);
}

const JobQueue::Entry* JobQueue::Walk::next() {
  if (levels_ == nullptr) return nullptr;
  if (!last_.empty()) leave_last();
  while (heap_.empty()) {
    if (level_ == levels_->end() || ++level_ == levels_->end()) return nullptr;
    open_level();
  }
  std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
  last_.push_back(std::move(heap_.back()));
  heap_.pop_back();
  return queue_.find(last_.back().head.first);
}

}  // namespace tessera::server
