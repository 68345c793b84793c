#include "tests/chaos/verify.h"

#include <limits>
#include <map>
#include <set>
#include <vector>

#include <SQLiteCpp/SQLiteCpp.h>

#include "absl/strings/str_cat.h"

namespace tessera::chaos {
namespace {

// Goes through the events of one job in order.
class EventCheck {
 public:
  EventCheck(const v1::Job& job, Journal& journal) : job_(job), journal_(journal) {}

  void add(const v1::Event& event) {
    if (event.revision() <= last_revision_) breach("has revisions that do not grow");
    last_revision_ = event.revision();
    if (is_terminal(state_)) breach("has events after its last state");
    if (event.has_state()) add_state(event.state());
    if (!event.has_step()) return;
    const int32_t expected = ++steps_[event.attempt()];
    if (event.step().step() == expected) return;
    breach(absl::StrCat("has step ", event.step().step(), " of attempt ", event.attempt(),
                        " where step ", expected, " is due"));
  }

  void end() {
    if (state_ != job_.state()) {
      breach(absl::StrCat("ends with the event ", v1::Job::State_Name(state_), " and is ",
                          v1::Job::State_Name(job_.state())));
    }
    if (last_revision_ != job_.revision()) breach("is not at the revision of its last event");
    const int32_t wanted = job_.spec().training().max_steps();
    if (state_ == v1::Job::SUCCEEDED && steps_[job_.attempt()] != wanted) {
      breach(absl::StrCat("succeeded with ", steps_[job_.attempt()], " of ", wanted, " steps"));
    }
  }

 private:
  void add_state(const v1::StateChange& change) {
    if (change.previous() != state_) {
      breach(absl::StrCat("goes from ", v1::Job::State_Name(change.previous()), ", and was ",
                          v1::Job::State_Name(state_)));
    }
    state_ = change.state();
  }
  void breach(const std::string& what) {
    journal_.violate(absl::StrCat("job ", job_.id(), " ", what));
  }

  const v1::Job& job_;
  Journal& journal_;
  int64_t last_revision_ = 0;
  v1::Job::State state_ = v1::Job::STATE_UNSPECIFIED;
  std::map<int32_t, int32_t> steps_;  // of each attempt, so far
};

// Its end beside what the machines ran.
void check_runs(const v1::Job& job, const JobEntry& entry, Journal& journal) {
  const auto breach = [&](const std::string& what) {
    journal.violate(absl::StrCat("job ", job.id(), " ", what));
  };
  if (job.state() == v1::Job::SUCCEEDED) {
    if (entry.complete != std::set<int>{job.attempt()}) {
      breach(absl::StrCat("SUCCEEDED with attempt ", job.attempt(), ", and ", entry.complete.size(),
                          " attempts ran to their end"));
    }
  } else if (job.state() != v1::Job::CANCELLED || !entry.is_cancelled) {
    breach(absl::StrCat("is ", v1::Job::State_Name(job.state()), ": ", job.reason()));
  }
  if (!entry.begun.empty() && entry.begun.rbegin()->first > job.attempt()) {
    breach(absl::StrCat("has had ", job.attempt(), " attempts, and attempt ",
                        entry.begun.rbegin()->first, " ran"));
  }
  for (const auto& [attempt, nodes] : entry.running) {
    if (!nodes.empty()) breach(absl::StrCat("has ended, and attempt ", attempt, " runs"));
  }
}

}  // namespace

Verified verify(Client& client, Journal& journal) {
  Verified sums;
  const auto jobs = client.list({}, std::numeric_limits<size_t>::max());
  if (!jobs.ok()) {
    journal.violate(absl::StrCat("list: ", jobs.status().ToString()));
    return sums;
  }
  std::map<std::string, JobEntry> entries = journal.jobs();
  for (const v1::Job& job : *jobs) {
    const auto entry = entries.extract(job.id());
    if (entry.empty() || entry.mapped().request_id.empty()) {
      journal.violate(absl::StrCat("job ", job.id(), " is there, and nobody was told of it"));
      continue;
    }
    check_runs(job, entry.mapped(), journal);
    EventCheck events(job, journal);
    const absl::Status status =
        client.watch({.id = job.id(), .follow = false}, [&](const v1::Event& event) {
          events.add(event);
          ++sums.num_events;
        });
    if (!status.ok()) journal.violate(absl::StrCat("watch ", job.id(), ": ", status.ToString()));
    events.end();
    ++sums.num_jobs;
    sums.num_succeeded += job.state() == v1::Job::SUCCEEDED;
    sums.num_cancelled += job.state() == v1::Job::CANCELLED;
  }
  for (const auto& [id, entry] : entries) {
    journal.violate(absl::StrCat("job ", id, " of request ", entry.request_id, " is lost"));
  }
  return sums;
}

void verify_database(const std::string& path, Journal& journal) {
  SQLite::Database database(path, SQLite::OPEN_READONLY);
  const std::string found = database.execAndGet("PRAGMA integrity_check").getString();
  if (found != "ok") journal.violate(absl::StrCat(path, ": ", found));
  SQLite::Statement foreign(database, "PRAGMA foreign_key_check");
  if (foreign.executeStep()) journal.violate(absl::StrCat(path, ": broken foreign keys"));
}

}  // namespace tessera::chaos
