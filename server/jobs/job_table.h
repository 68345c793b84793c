// The unfinished jobs, in memory and in the store. Every change of a job goes through here.
//
// Belongs to the control loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/jobs/clock.h"
#include "server/jobs/store.h"

namespace tessera::server {

// What one transaction did to a job.
struct JobChange {
  int64_t number = 0;
  v1::Job job;
  // The job's before: `events` are all that it got since.
  int64_t previous_revision = 0;
  std::vector<v1::Event> events;
};

class JobTable {
 public:
  // `random` gives 32 random bits a call; ids are made of them.
  JobTable(Store& store, const Clock& clock, std::function<uint32_t()> random);

  // Adds a QUEUED job.
  JobRecord& create(const v1::JobSpec& spec, const v1::JobSpec& submitted,
                    const std::string& request_id);

  // nullptr: no such job, or it has ended.
  JobRecord* find(const std::string& id);
  // In order of submission. A job that ends stays until flush().
  const std::map<int64_t, std::unique_ptr<JobRecord>>& all() const { return records_; }
  size_t size() const { return records_.size(); }

  // Moves the job and adds the event that says so. Requires: can_transition().
  void transition(JobRecord& record, v1::Job::State state, const std::string& reason,
                  const v1::Failure* failure = nullptr);
  // Adds an event; its time is now where it has none.
  void append(JobRecord& record, v1::Event event);
  void log(JobRecord& record, v1::LogLine::Severity severity, const std::string& text,
           int rank = -1);
  // The record was changed without an event.
  void touch(JobRecord& record) { pending(record); }

  // Jobs that changed since flush().
  std::vector<JobRecord*> changed() const;
  // Writes the rows of changed jobs, and gives the changes since the last call, to be told once
  // committed.
  std::vector<JobChange> flush();

 private:
  struct Pending {
    int64_t previous_revision = 0;
    std::vector<v1::Event> events;
  };

  std::string new_id(const std::string& name);
  // What the transaction does to the job: to be called before its revision changes.
  Pending& pending(const JobRecord& record);

  Store& store_;
  const Clock& clock_;
  std::function<uint32_t()> random_;
  std::map<int64_t, std::unique_ptr<JobRecord>> records_;
  std::map<std::string, int64_t> numbers_;
  std::map<int64_t, Pending> changes_;
};

// For timestamps of messages.
google::protobuf::Timestamp to_proto(absl::Time time);
absl::Time from_proto(const google::protobuf::Timestamp& time);

}  // namespace tessera::server
