// The jobs that wait, in the order in which they are looked at: by priority, then by the score of
// their projects, then in order of submission. Pure.
//
// Jobs that need the same are of one shape: where one of them cannot start, no other can, and a
// round passes over all of them at once.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/views.h"

namespace tessera::server {

struct Shape {
  std::string kind, model;
  std::vector<GangSize> sizes;
  absl::Duration longest;
  std::weak_ordering operator<=>(const Shape&) const = default;

  Demand demand(const GangSize& size) const { return {kind, model, size.bytes_per_rank}; }
};

class JobQueue {
 public:
  struct Entry {
    QueuedJob job;
    const Shape* shape = nullptr;
    // It may not start yet.
    bool delayed = false;
  };
  using Score = std::function<double(const std::string& project)>;

  // Replaces the job of that number.
  void put(const QueuedJob& job, absl::Duration now);
  void remove(int64_t number);
  const Entry* find(int64_t number) const;
  size_t size() const { return entries_.size(); }
  // Lets jobs in whose time has come.
  void wake(absl::Duration now);
  std::vector<std::string> kinds() const;
  // Of a kind; empty: none waits.
  bool empty(const std::string& kind) const;
  // Jobs of all kinds that may start, in order; at most `limit`, and then those that may not yet.
  std::vector<int64_t> order(const Score& score, size_t limit) const;

 private:
  // Of one project at one priority.
  struct Lane {
    std::map<const Shape*, std::set<int64_t>> by_shape;
    // The first of each shape.
    std::set<std::pair<int64_t, const Shape*>> heads;
    std::set<int64_t> all;
  };
  using Level = std::map<std::string, Lane>;
  using Levels = std::map<int, Level, std::greater<>>;

 public:
  // Goes through the jobs of a kind, for one round. The job that it gave last may be removed from
  // the queue meanwhile; no other change is allowed.
  class Walk {
   public:
    Walk(const JobQueue& queue, const std::string& kind, Score score);
    // nullptr: no more.
    const Entry* next();
    // Of the job that it gave last, which stays in the queue: it alone, or all jobs of its shape in
    // its project and priority, come no more.
    void skip() { last_stays_ = true; }
    void pass_over() { passed_over_ = true; }

   private:
    struct Cursor {
      double score;
      std::pair<int64_t, const Shape*> head;
      const std::string* project;
      const Lane* lane;
      std::set<const Shape*> passed;
      // Behind jobs that were skipped: the next of their shapes.
      std::set<std::pair<int64_t, const Shape*>> behind_skipped;
      bool is_behind_skipped = false;  // the head is
      bool operator>(const Cursor& other) const {
        return std::pair(score, head.first) > std::pair(other.score, other.head.first);
      }
    };
    void open_level();
    void leave_last();
    void push(Cursor cursor, const std::pair<int64_t, const Shape*>& after);

    const JobQueue& queue_;
    const Score score_;
    const Levels* levels_ = nullptr;
    Levels::const_iterator level_;
    std::vector<Cursor> heap_;
    std::vector<Cursor> last_;  // the one that gave the last job, or none
    bool passed_over_ = false, last_stays_ = false;
  };

 private:
  void link(const Entry& entry);
  void unlink(const Entry& entry);
  const Shape* intern(const QueuedJob& job);
  void release(const Shape* shape);

  std::map<int64_t, Entry> entries_;
  std::map<Shape, int> shapes_;  // and the jobs of each
  std::map<std::string, Levels> kinds_;
  std::set<std::pair<absl::Duration, int64_t>> delayed_;
};

}  // namespace tessera::server
