// Jobs, their events and cursors in a database (database.h): what commit() returned for survives
// kill -9 and power loss.
//
// One writer (Store, used by the control loop's thread alone), any number of readers (Reader), each
// on a connection of its own. Both throw DatabaseError when the database fails; for the writer that
// begins an outage or ends the process (server/agents/lasting_control.h), for a reader it ends the
// call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/database.h"
#include "server/jobs/queries.h"
#include "tessera/v1/agent.pb.h"

namespace tessera::server {

// A job that a request id made, and the spec it was made with, as received.
struct Submission {
  std::string job_id;
  v1::JobSpec spec;
};

// Of a project: what was set, and what it had of the devices (FairShare::mean).
struct StoredProject {
  v1::Project project;
  double mean = 0;
  absl::Time mean_time;
};

class Store {
 public:
  // Opens or makes its tables. Errors are those of Storage::open; throws DatabaseError.
  static absl::StatusOr<std::unique_ptr<Store>> open(Storage& storage);
  // In a file of SQLite.
  static absl::StatusOr<std::unique_ptr<Store>> open(const std::filesystem::path& path);

  // Writes join one transaction, begun by the first of them, until commit() has it on disk.
  void commit();

  // Adds the job and gives it its number.
  void insert(JobRecord& record, const std::string& request_id, const v1::JobSpec& submitted);
  void update(const JobRecord& record);
  // Adds an event and gives it the next revision.
  void append(int64_t number, v1::Event& event);

  // 0 for a stream of which nothing is stored.
  int64_t cursor(int64_t number, const v1::Cursor& cursor);
  void set_cursor(int64_t number, const v1::Cursor& cursor);

  // One more than at the last call for the node, ever.
  int64_t next_epoch(const std::string& node);

  std::optional<Submission> submission(const std::string& request_id);
  // The spec that the job was made with, as received.
  v1::JobSpec submitted(int64_t number);

  // Measured over predicted peaks of jobs on such a device: the mean, in which the last ones weigh
  // most. 1 where none is known.
  double peak_ratio(const std::string& device);
  // Takes one more into account, and returns the mean.
  double add_peak_ratio(const std::string& device, double ratio);

  void put_project(const StoredProject& project);
  std::vector<StoredProject> projects();

  // What `name` was set to for all who use this database; empty: it was not yet.
  std::string setting(const std::string& name);
  void set_setting(const std::string& name, const std::string& value);

  // In order of submission.
  std::vector<JobRecord> unfinished();
  Queries& queries() { return *queries_; }

 private:
  explicit Store(std::unique_ptr<Database> database);
  static absl::StatusOr<std::unique_ptr<Store>> on(
      absl::StatusOr<std::unique_ptr<Database>> database);
  void append_in_state(int state, std::vector<JobRecord>& records);

  std::unique_ptr<Database> database_;
  std::unique_ptr<Queries> queries_;
  // The last ones given out.
  int64_t revision_ = 0;
  int64_t number_ = 0;
};

// Reads what is committed. Thread safe: calls take turns.
class Reader {
 public:
  explicit Reader(Storage& storage);
  // Of a file of SQLite.
  explicit Reader(const std::filesystem::path& path);

  // Calls `read` with the queries; the answer is its own.
  template <typename Read>
  auto operator()(Read read) {
    std::lock_guard lock(mutex_);
    return read(queries_);
  }

 private:
  explicit Reader(std::unique_ptr<Database> database)
      : database_(std::move(database)), queries_(*database_) {}

  std::mutex mutex_;
  const std::unique_ptr<Database> database_;
  Queries queries_;
};

}  // namespace tessera::server
