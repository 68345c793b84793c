// The life of an attempt: from placement over its two-phase start to the last of its processes.
//
// Belongs to the control loop's thread. All of an attempt that must survive a crash is in its
// JobRecord; here are only deadlines, which start anew with the process.
//
// An attempt is over when every node of its gang has ended: it said RunEnded, it refused to
// prepare, it came back without the run, or it was silent for so long that it fenced itself. What
// then became of the ranks decides the job's next state. Messages to agents may be sent twice (a
// reconnect, a kill that is repeated); an agent takes each as often as it comes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/agents/nodes.h"
#include "server/jobs/job_table.h"

namespace tessera::server {

struct GangOptions {
  // From Prepare to the last Prepared, and from Start to the last Started.
  absl::Duration start_timeout = absl::Seconds(30);
  // What ranks get to end by themselves once another one failed, and once the job is cancelled.
  absl::Duration restart_grace = absl::Seconds(3);
  absl::Duration cancel_grace = absl::Seconds(10);
};

class Gangs {
 public:
  Gangs(JobTable& jobs, Nodes& nodes, Store& store, const Clock& clock, GangOptions options);

  // QUEUED to STARTING: a new attempt, one rank a placement.
  void launch(JobRecord& record, const std::vector<v1::Placement>& placements);
  // To CANCELLING, or from QUEUED to CANCELLED at once. An ended or ending job stays as it is.
  void cancel(JobRecord& record);

  // What a node says of a run. Anything about another attempt than the current one is ignored.
  void prepared(const std::string& node, const v1::Prepared& message);
  void events(const std::string& node, const v1::EventBatch& batch);
  void rank_exited(const std::string& node, const v1::RankExited& message);
  void run_ended(const std::string& node, const v1::RunEnded& message);

  // Cursors of the runs of a Hello that are still wanted.
  std::vector<v1::Cursor> cursors(const v1::Hello& hello);
  // The node is back, and has been welcomed: repeats what it may have missed, and gives up what it
  // lost.
  void rejoined(const v1::Hello& hello);
  // The node's ranks have ended themselves.
  void give_up(const std::string& node);

  // Deadlines of starts, and repeated kills.
  void tick();

  // On the clock's uptime: when a queued job may start.
  absl::Duration not_before(const JobRecord& record) const;

 private:
  struct Timing {
    absl::Duration start_deadline;
    absl::Duration next_kill;
    absl::Duration not_before;
  };

  // The record and its gang's entry of the node, if `run` is the current attempt and lives there.
  struct Member {
    JobRecord* record = nullptr;
    GangNode* node = nullptr;
    explicit operator bool() const { return node != nullptr; }
  };
  Member find(const std::string& node, const v1::RunId& run);

  void send_prepare(const JobRecord& record, const std::string& node);
  void send_start(const JobRecord& record, const std::string& node);
  void send_kill(JobRecord& record);
  void apply(JobRecord& record, int rank, const v1::TrainerEvent& event);
  void rank_started(JobRecord& record, int rank, const v1::Started& started);
  void rank_finished(JobRecord& record, int rank, const v1::Finished& finished);
  void checkpoint_saved(JobRecord& record, const v1::CheckpointSaved& checkpoint);
  // Compares the first steps with the rehearsal.
  void memory_seen(JobRecord& record, int rank, const v1::MemorySnapshot& memory);
  // Notes the failure; the first one ends the attempt.
  void fail(JobRecord& record, const v1::Failure& failure);
  // Moves the job on once its attempt is over.
  void settle(JobRecord& record);
  void settle_failed(JobRecord& record);
  // Whether the job, out of memory, waits for another plan.
  bool settle_for_replan(JobRecord& record, const v1::Failure& cause);
  void release(JobRecord& record);

  JobTable& jobs_;
  Nodes& nodes_;
  Store& store_;
  const Clock& clock_;
  const GangOptions options_;
  std::map<int64_t, Timing> timings_;
};

// The failure that explains the others best: by kind, then the earliest. Requires: not empty.
const v1::Failure& root_cause(const google::protobuf::RepeatedPtrField<v1::Failure>& failures);

}  // namespace tessera::server
